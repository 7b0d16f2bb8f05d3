//! Looking at everything that a store on a tree has: checks, damage, statistics.

use super::counts::Count;
use super::ledger::count_in;
use super::long;
use super::names::Names;
use super::value::{Found, Marker};
use super::{ALL, Core};
use crate::error::DamagedRecord;
use crate::key::{CATALOGUE, split};
use crate::report::{CheckReport, StoreStats};
use bristlecone_index::Violation;
use bristlecone_index::clustered::When;
use bristlecone_pmem::Media;
use bristlecone_pmem::sync::lock;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

impl<M: Media> Core<M> {
    pub(super) fn stats(&self) -> StoreStats {
        self.count_keys();
        let mut all = Count::default();
        self.counts.all().values().for_each(|count| all.add(*count));
        let all = all.or_zero();
        let (oldest, snapshots) = self.tree.readers();
        let space = self.tree.space();
        let keys = all.keys + self.catalogue.count();
        let (kept, kept_bytes) = self.tree.kept();
        let (vacuumed, vacuumed_bytes) = self.sweep.removed();
        StoreStats {
            keys,
            versions: keys + kept,
            live_bytes: all.bytes,
            garbage_bytes: kept_bytes,
            expiring: all.expiring,
            vacuumed,
            vacuumed_bytes,
            mended: self.tree.made_again(),
            durable: self.durable(),
            oldest_snapshot: oldest.map(|time| time - 1),
            snapshots: snapshots as u64,
            chunk_bytes: space.chunk_bytes,
            block_bytes: space.live_bytes,
            scrub: self.scrub.stats(),
        }
    }

    pub(super) fn len(&self, number: u32) -> u64 {
        if self.dropped_at(number).is_some() {
            return 0;
        }
        if !self.are_counted() {
            self.count_keys();
        }
        self.counts.of(number).or_zero().keys
    }

    /// Checks the tree and all values, and that the counts are right and nothing is left of
    /// keyspaces that nobody is to take away. Nobody changes anything meanwhile.
    pub(super) fn check(&self) -> Result<CheckReport, Violation> {
        let _held = self.control.hold();
        self.tree.verify()?;
        self.count_keys();
        let damaged = self.find_damage_now();
        if !damaged.is_empty() {
            let lines: Vec<String> = damaged.iter().map(ToString::to_string).collect();
            return Err(Violation::new(format!(
                "{} damaged records, which are kept; put or delete their keys, or take them from a \
                 backup:\n{}",
                lines.len(),
                lines.join("\n")
            )));
        }
        let mut found: BTreeMap<u32, Count> = BTreeMap::new();
        let scanned = self.tree.salvage(
            ALL,
            |key, current| {
                count_in(&mut found, key, current);
                Ok(ControlFlow::Continue(()))
            },
            |_, _| {},
        );
        scanned.map_err(|e| Violation::new(e.to_string()))?;
        let mut all = Count::default();
        found.values().for_each(|count| all.add(*count));
        let report = CheckReport {
            entries: all.keys,
            versions: all.keys,
            bytes: all.bytes,
            ..CheckReport::default()
        };
        found.remove(&CATALOGUE);
        let counted = self.counts.all();
        if counted != found {
            let what = format!("the counts are {counted:?}, and {found:?} are there");
            return Err(Violation::new(what));
        }
        let names = Names::read(&self.tree);
        names.agree().map_err(Violation::new)?;
        let known = lock(&self.catalogue.known).by_name.clone();
        // There may be more of them: a commit that failed can have made one.
        let lost = known
            .iter()
            .find(|(name, number)| names.named.get(number) != Some(name));
        if let Some((name, number)) = lost {
            let what = format!("the catalogue does not have keyspace {name:?}, number {number}");
            return Err(Violation::new(what));
        }
        let mut noted = self.sweep.numbers();
        noted.sort_unstable();
        if !names.dropped.iter().eq(&noted) {
            let what = format!(
                "keyspace numbers {noted:?} are to be swept, and {:?} are noted as dropped",
                names.dropped
            );
            return Err(Violation::leak(what));
        }
        let is_lost =
            |number: &&u32| !names.named.contains_key(number) && !names.dropped.contains(number);
        if let Some(number) = found.keys().find(is_lost) {
            return Err(Violation::leak(format!(
                "{} keys are of keyspace number {number}, whose name is lost; they are kept, and \
                 `bristlecone export --skip-damaged` saves them",
                found[number].keys
            )));
        }
        Ok(report)
    }

    pub(super) fn find_damage(&self) -> Vec<DamagedRecord> {
        let _held = self.control.hold();
        self.find_damage_now()
    }

    fn find_damage_now(&self) -> Vec<DamagedRecord> {
        let mut pages = Vec::new();
        let mut values = Vec::new();
        // Parts of their values are removed first.
        let swept = self.sweep.numbers();
        let is_swept = |key: &[u8]| split(key).is_some_and(|(number, _)| swept.contains(&number));
        let scanned = self.tree.salvage(
            ALL,
            |key, current| {
                let decoded = match current.value() {
                    Ok(stored) if long::is_marker::<M>(key) => {
                        Marker::decode(&stored).map(|_| ()).map_err(|e| e.0)
                    }
                    Ok(stored) => match Found::of(&stored) {
                        Ok(Found::Here(..)) => Ok(()),
                        Ok(Found::Packed(packed)) => packed.unpack().map(|_| ()).map_err(|e| e.0),
                        Ok(Found::Apart(_)) if is_swept(key) => Ok(()),
                        Ok(Found::Apart(head)) => {
                            let parts = self.assemble(When::Now, key, &head);
                            parts.map(|_| ()).map_err(|e| e.to_string())
                        }
                        Err(e) => Err(e.0),
                    },
                    Err(e) => Err(e.to_string()),
                };
                if let Err(what) = decoded {
                    values.push(DamagedRecord::in_tree(Some(key), what));
                }
                Ok(ControlFlow::Continue(()))
            },
            |(low, _), e| {
                let low = match low {
                    Bound::Included(low) | Bound::Excluded(low) => Some(low),
                    Bound::Unbounded => None,
                };
                pages.push(DamagedRecord::in_tree(low, e.to_string()));
            },
        );
        if let Err(e) = scanned {
            pages.push(DamagedRecord::in_tree(None, e.to_string()));
        }
        pages.extend(values);
        pages
    }
}
