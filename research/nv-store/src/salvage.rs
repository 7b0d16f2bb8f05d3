//! Reading what a damaged store of version records still has.

use crate::index::{self, Opened};
use crate::record::{self, Meta, Stamp};
use crate::slots::{Slots, Verdict};
use bristlecone_index::Direction;
use bristlecone_index::engine::{Engine, EngineKind};
use bristlecone_pmem::{Heap, Media, Pool};
use bristlecone_store::engine::{
    CATALOGUE, StoreRoot, WORD_OWN, expires_at, parse_name, root_word, split,
};
use bristlecone_store::{Damage, Entry, SalvageReport, Salvaged, StoreError};
use crossbeam_epoch as epoch;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// Uncommitted records that may be in front of a committed one.
const MAX_UNCOMMITTED: u32 = 64;

/// Visits what the store of that root has.
///
/// # Errors
/// [`StoreError`]: the index as a whole or the commit table is damaged.
pub fn salvage<M: Media>(
    pool: &Arc<Pool<M>>,
    store: &StoreRoot<M>,
    kinds: &[&dyn EngineKind<M>],
    now: u64,
    visit: &mut dyn FnMut(Salvaged<'_>) -> ControlFlow<()>,
) -> Result<SalvageReport, StoreError> {
    let table = root_word(pool.pm(), store.root.word(WORD_OWN));
    let Opened {
        index,
        design,
        node_bytes,
        ..
    } = index::open(pool, &store.index_name, kinds, 1)?;
    let violation = index.verify().err();
    let heap = store.root.heap();
    heap.begin_recovery();
    let slots = Slots::open(pool.pm(), table)?;
    let mut walk = Walk {
        heap: &heap,
        slots: &slots,
        now,
        names: BTreeMap::new(),
        // A name may be among the keys that cannot be read.
        catalogue_damaged: violation.is_some() || bristlecone_index::damage::any(),
        walked: 0,
    };
    walk.names(&*index, visit);
    walk.entries(&*index, visit);
    Ok(SalvageReport {
        passed: Vec::new(),
        design,
        node_bytes,
        indexed: index.stats().entries,
        walked: walk.walked,
        keyspaces: walk.names.values().map(|name| name.to_string()).collect(),
        violation,
    })
}

struct Walk<'a, M: Media> {
    heap: &'a Heap<M>,
    slots: &'a Slots,
    now: u64,
    names: BTreeMap<u32, Arc<str>>,
    catalogue_damaged: bool,
    walked: u64,
}

impl<M: Media> Walk<'_, M> {
    /// Reads the catalogue.
    fn names(
        &mut self,
        index: &dyn Engine,
        visit: &mut dyn FnMut(Salvaged<'_>) -> ControlFlow<()>,
    ) {
        let first_other = (CATALOGUE + 1).to_be_bytes();
        let range = (Bound::Unbounded, Bound::Excluded(&first_other[..]));
        index.scan(range, Direction::Up, None, &mut |key, &entry| {
            self.walked += 1;
            let found = self.committed(key, entry).and_then(|found| {
                let Some((off, meta)) = found.filter(|(_, meta)| !meta.is_tombstone()) else {
                    return Ok(None);
                };
                let value = record::value(self.heap.pool().pm(), off, &meta)?;
                let parsed = parse_name(key, &value);
                parsed
                    .map(Some)
                    .ok_or_else(|| Damage::new("no entry of the catalogue is like that"))
            });
            match found {
                Ok(Some((name, number))) => {
                    self.names.insert(number, name);
                }
                Ok(None) => {}
                Err(e) => {
                    self.catalogue_damaged = true;
                    return visit(Salvaged {
                        keyspace: None,
                        number: CATALOGUE,
                        key: split(key).map_or(key, |(_, name)| name),
                        found: Err(e.into()),
                    });
                }
            }
            ControlFlow::Continue(())
        });
    }

    /// Visits the entries of all keyspaces.
    fn entries(
        &mut self,
        index: &dyn Engine,
        visit: &mut dyn FnMut(Salvaged<'_>) -> ControlFlow<()>,
    ) {
        let first = (CATALOGUE + 1).to_be_bytes();
        let range = (Bound::Included(&first[..]), Bound::Unbounded);
        index.scan(range, Direction::Up, None, &mut |index_key, &entry| {
            self.walked += 1;
            let Some((number, key)) = split(index_key) else {
                return ControlFlow::Continue(());
            };
            let name = self.names.get(&number).cloned();
            if name.is_none() && !self.catalogue_damaged {
                // Of a keyspace that was dropped.
                return ControlFlow::Continue(());
            }
            let pm = self.heap.pool().pm();
            let found = match self.committed(index_key, entry) {
                Ok(Some((_, meta))) if meta.absent_by(|| self.now) => {
                    return ControlFlow::Continue(());
                }
                Ok(Some((off, meta))) => {
                    record::value(pm, off, &meta).map(|value| (value, meta.expiry()))
                }
                Ok(None) => return ControlFlow::Continue(()),
                Err(e) => Err(e),
            };
            let value;
            let found = match found {
                Ok((bytes, expiry)) => {
                    value = bytes;
                    Ok(Entry {
                        value: &value,
                        expires_at: expires_at(expiry),
                    })
                }
                Err(e) => Err(e.into()),
            };
            visit(Salvaged {
                keyspace: name.as_deref(),
                number,
                key,
                found,
            })
        });
    }

    /// Finds the newest committed record in the chain that begins at `entry`, and compares its
    /// checksum.
    ///
    /// # Errors
    /// [`Damage`]
    fn committed(&self, key: &[u8], entry: u64) -> Result<Option<(u64, Meta)>, Damage> {
        let pm = self.heap.pool().pm();
        let mut off = entry;
        for _ in 0..=MAX_UNCOMMITTED {
            if off == 0 {
                return Ok(None);
            }
            let broken = |what: String| Damage::new(format!("record {off:#x}: {what}"));
            self.heap.check(off, record::MIN_BLOCK).map_err(broken)?;
            let header = record::header(pm, off)?;
            let stamp = header.stamp(pm);
            let is_committed = match stamp {
                Stamp::Dead => false,
                Stamp::At(ts) if record::is_valid_timestamp(ts) => true,
                Stamp::At(_) => return Err(broken(format!("no commit has {stamp:?}"))),
                Stamp::Pending { slot, ts } => match self.slots.judge(pm, slot, ts) {
                    Verdict::Committed => true,
                    Verdict::Never => false,
                    Verdict::Impossible(why) => {
                        return Err(broken(format!("no commit has {stamp:?}: {why}")));
                    }
                },
            };
            if is_committed {
                let meta = header.meta(pm);
                if !meta.is_valid() {
                    return Err(broken(format!("no record is {meta:?}")));
                }
                record::mark(self.heap, off, &meta, &epoch::pin())?;
                record::verify_checksum(pm, key, off, &meta)?;
                return Ok(Some((off, meta)));
            }
            off = header.previous(pm);
        }
        Err(Damage::new(format!(
            "record {entry:#x}: more than {MAX_UNCOMMITTED} that were never committed"
        )))
    }
}
