//! Putting what an archive has into a new store: entries of the tree, as they are.

use super::TreeEngine;
use crate::engine::Shares;
use crate::error::{ReadError, StoreError, WriteError};
use crate::options::StoreOptions;
use crate::root::WORD_UNFINISHED;
use bristlecone_index::engine::Range;
use bristlecone_pmem::{Media, Pool};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Keys of the tree with their values; `None`: they are removed.
pub(crate) type Replayed = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

impl<M: Media> TreeEngine<M> {
    /// Makes an empty store that cannot be opened before it was [finished](Self::finish_replay).
    ///
    /// # Errors
    /// [`StoreError`]; no store is left behind.
    pub(crate) fn begin_replay(
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &StoreOptions,
    ) -> Result<Self, StoreError> {
        // Nothing is swept: the store is not one yet.
        let options = options.clone().without_thread();
        Self::create(pool, name, &options, true, Shares::default())
    }

    /// Makes changes.
    ///
    /// # Errors
    /// [`WriteError`]; none has been made then.
    pub(crate) fn replay(&self, changes: &Replayed) -> Result<(), WriteError> {
        if changes.is_empty() {
            return Ok(());
        }
        let all = changes
            .iter()
            .map(|(key, value)| (key.as_slice(), value.as_deref()));
        let written = self.core.tree.write(all, None, None);
        written.map_err(|e| super::write_error(None, e)).map(drop)
    }

    /// Returns the first keys of the tree in a range, up to `most`.
    ///
    /// # Errors
    /// [`ReadError`]
    pub(crate) fn keys_of_tree(
        &self,
        range: Range<'_>,
        most: usize,
    ) -> Result<Vec<Vec<u8>>, ReadError> {
        let mut keys = Vec::new();
        let scanned = self.core.tree.scan_present(range, |key, _| {
            keys.push(key.to_vec());
            Ok(if keys.len() < most {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            })
        });
        scanned.map_err(|e| super::read_error(None, e))?;
        Ok(keys)
    }

    /// Makes all of it durable, and then the store one that can be opened.
    ///
    /// # Errors
    /// [`StoreError`]
    pub(crate) fn finish_replay(&self) -> Result<(), StoreError> {
        let pm = self.core.pm();
        self.core.make_durable(self.core.applied())?;
        // PERSIST: (in `publish`) the store is complete from here on; all its content is durable.
        self.core.root.word(WORD_UNFINISHED).publish(pm, 0);
        Ok(pm.commit()?)
    }
}
