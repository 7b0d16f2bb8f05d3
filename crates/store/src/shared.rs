//! The state that all handles of an open store share.

use crate::catalogue::Catalogue;
use crate::engine::StorageEngine;
use crate::feed::Feed;
use crate::wall::WallClock;
use bristlecone_pmem::Media;
use std::sync::Arc;

/// An open store. It is closed when the last handle is dropped.
pub(crate) struct Shared<M: Media> {
    pub engine: Box<dyn StorageEngine<M>>,
    pub catalogue: Arc<Catalogue>,
    pub feed: Arc<Feed>,
    pub wall: WallClock,
    pub name: String,
}
