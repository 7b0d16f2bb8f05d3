//! Opening the index of a store, of whatever [engine](Engine) it is.
//!
//! The index leads from index keys ([`IndexKey`](bristlecone_store::engine::IndexKey)) to the
//! offset of each key's newest version record. The pool's root table names its design at the
//! index's root.

use bristlecone_index::engine::{Engine, EngineInfo, EngineKind};
use bristlecone_index::{Direction, damage};
use bristlecone_pmem::pool::{RootError, RootKind};
use bristlecone_pmem::{Media, Pool};
use bristlecone_store::StoreError;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// An index that was opened.
pub(crate) struct Opened {
    pub index: Box<dyn Engine>,
    /// The name of its design.
    pub design: String,
    /// Its leaf size.
    pub node_bytes: u32,
    /// Its content is not that of the last close. The walk over the records has to find why.
    pub differs: Option<String>,
}

/// Returns the leaf size of a new index: the one `asked` for, or the engine's default.
///
/// # Errors
/// [`StoreError::NodeBytes`]
pub(crate) fn node_bytes(info: EngineInfo, asked: Option<u32>) -> Result<u32, StoreError> {
    let asked = asked.unwrap_or(info.default_node_bytes);
    if info.node_bytes.contains(&asked) {
        return Ok(asked);
    }
    Err(StoreError::NodeBytes {
        design: info.name,
        asked,
        there: info.node_bytes,
    })
}

/// Opens the index at root `root` with the engine of its design, which must be one of `kinds`.
pub(crate) fn open<M: Media>(
    pool: &Arc<Pool<M>>,
    root: &str,
    kinds: &[&dyn EngineKind<M>],
    recovery_threads: usize,
) -> Result<Opened, StoreError> {
    let there = pool.roots().into_iter().find(|info| info.name == root);
    let RootKind {
        design, node_bytes, ..
    } = there
        .ok_or_else(|| RootError::NotFound(root.to_owned()))?
        .kind;
    let Some(kind) = kinds.iter().find(|kind| kind.info().name == design) else {
        return Err(StoreError::NoDesign {
            design,
            there: kinds.iter().map(|kind| kind.info().name).collect(),
        });
    };
    let (index, differs) = damage::reading(|| kind.open(pool, root, node_bytes, recovery_threads));
    Ok(Opened {
        index: index?,
        design,
        node_bytes,
        differs,
    })
}

/// Returns whether the index has no entry.
pub(crate) fn is_empty(index: &dyn Engine) -> bool {
    let mut empty = true;
    let all = (Bound::Unbounded, Bound::Unbounded);
    index.scan(all, Direction::Up, None, &mut |_, _| {
        empty = false;
        ControlFlow::Break(())
    });
    empty
}
