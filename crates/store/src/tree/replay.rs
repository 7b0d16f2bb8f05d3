//! Putting what an archive has into a new store: entries of the tree, as they are.

use super::TreeEngine;
use super::long::{self, SPACES};
use super::parts::PARTS;
use super::value::Marker;
use crate::engine::Shares;
use crate::error::{ReadError, StoreError, WriteError};
use crate::key::split;
use crate::options::StoreOptions;
use crate::root::WORD_UNFINISHED;
use bristlecone_index::clustered::HostedTree;
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
        let options = StoreOptions {
            memory: options.memory,
            ..options.clone().without_thread()
        };
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

    /// Returns the number that an entry of the tree of another store uses: that of a space of long
    /// keys, or of a value in parts. 0 if it uses none.
    pub(crate) fn number_in(key: &[u8], value: Option<&[u8]>) -> u64 {
        if long::is_marker::<M>(key) {
            return value.map_or(0, |value| Marker::decode(value).unwrap_or(0));
        }
        let number = match split(key) {
            Some((SPACES | PARTS, rest)) => rest.get(4..).and_then(|rest| rest.first_chunk()),
            _ => None,
        };
        // Above that there are none: it is damaged.
        let number = number.map_or(0, |bytes| u64::from_be_bytes(*bytes));
        if number > HostedTree::<M>::MAX_NUMBER {
            return 0;
        }
        number
    }

    /// Makes all of it durable, and then the store one that can be opened. `number` is the highest
    /// one that its entries [use](Self::number_in): the store does not give it again.
    ///
    /// # Errors
    /// [`StoreError`]
    pub(crate) fn finish_replay(&self, number: u64) -> Result<(), StoreError> {
        let pm = self.core.pm();
        self.core.tree.skip_numbers(number);
        self.core.make_durable(self.core.applied())?;
        // PERSIST: (in `publish`) the store is complete from here on; all its content is durable.
        self.core.root.word(WORD_UNFINISHED).publish(pm, 0);
        Ok(pm.commit()?)
    }
}
