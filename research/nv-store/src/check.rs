//! Checking a store of version records.

use crate::engine::Records;
use crate::record;
use crate::slots::DamagedSlot;
use bristlecone_index::{Direction, Violation};
use bristlecone_pmem::Media;
use bristlecone_store::engine::split;
use bristlecone_store::{CheckReport, Damage, DamagedRecord, StoreStats};
use std::collections::HashSet;
use std::ops::{Bound, ControlFlow};

/// The outcome of a scan of all records.
#[derive(Default)]
struct Findings {
    report: CheckReport,
    /// The blocks that were reached.
    seen: HashSet<u64>,
    damaged: Vec<DamagedRecord>,
}

impl<M: Media> Records<M> {
    pub(super) fn count(&self) -> StoreStats {
        let counts = self.stripes.counts();
        let (oldest_snapshot, snapshots) = self.snapshots.oldest();
        let heap = self.heap.stats();
        let mut stats = StoreStats::default();
        stats.keys = counts.keys.iter().map(|(_, keys)| keys).sum();
        stats.versions = counts.versions;
        stats.live_bytes = counts.live_bytes;
        stats.garbage_bytes = counts.bytes.saturating_sub(counts.live_bytes);
        stats.expiring = counts.expiring;
        stats.vacuumed = counts.vacuumed;
        stats.vacuumed_bytes = counts.vacuumed_bytes;
        stats.durable = self.clock.durable();
        stats.oldest_snapshot = oldest_snapshot;
        stats.snapshots = snapshots;
        stats.chunk_bytes = heap.chunk_bytes;
        stats.block_bytes = heap.live_bytes;
        stats
    }

    pub(super) fn check_records(&self) -> Result<CheckReport, Violation> {
        let findings = self.scan_records();
        if findings.damaged.is_empty() {
            return self.check_space(&findings.seen, &findings.report);
        }
        let lines: Vec<String> = findings.damaged.iter().map(ToString::to_string).collect();
        Err(Violation::new(format!(
            "{} damaged records, which are kept; put or delete their keys, or take them from a backup:\n{}",
            lines.len(),
            lines.join("\n")
        )))
    }

    pub(super) fn damaged_records(&self) -> Vec<DamagedRecord> {
        self.scan_records().damaged
    }

    /// Follows every entry of the index.
    fn scan_records(&self) -> Findings {
        let (_, slots) = self.slots.all(self.pm());
        let mut findings = Findings {
            damaged: slots.into_iter().map(DamagedRecord::from).collect(),
            ..Findings::default()
        };
        let all = (Bound::Unbounded, Bound::Unbounded);
        self.index
            .scan(all, Direction::Up, None, &mut |key, &entry| {
                findings.report.entries += 1;
                if let Err(e) = self.check_chain(key, entry, &mut findings) {
                    let key = Some(key.to_vec());
                    findings
                        .damaged
                        .push(DamagedRecord::at(key, entry, e.into_what()));
                }
                ControlFlow::Continue(())
            });
        findings
    }

    /// Checks that the blocks in use are those that were reached, and that the counts are right.
    fn check_space(
        &self,
        seen: &HashSet<u64>,
        report: &CheckReport,
    ) -> Result<CheckReport, Violation> {
        // The commit table has a block too, and so has the reserve for deletions.
        let reached = seen.len() as u64 + 1 + u64::from(self.deletion_reserve != 0);
        let live = self.heap.live_blocks();
        if live != reached {
            let what = format!("{live} blocks of {reached} that are reached are in use");
            return Err(Violation::leak(what));
        }
        let counts = self.stripes.counts();
        let dropped = self.dropped_ranges.numbers();
        let lost = (counts.keys.iter()).find(|(number, keys)| {
            *keys > 0 && !self.catalogue.has(*number) && !dropped.contains(number)
        });
        if let Some((number, keys)) = lost {
            let what = format!(
                "{keys} keys are of keyspace number {number}, which there is not, and nobody is to take them away"
            );
            return Err(Violation::leak(what));
        }
        if (counts.versions, counts.bytes) != (report.versions, report.bytes) {
            return Err(Violation::new(format!(
                "{} versions of {} bytes are counted, {} of {} are there",
                counts.versions, counts.bytes, report.versions, report.bytes
            )));
        }
        Ok(*report)
    }

    fn check_chain(&self, key: &[u8], entry: u64, findings: &mut Findings) -> Result<(), Damage> {
        let pm = self.pm();
        let Findings { report, seen, .. } = findings;
        if split(key).is_none() {
            return Err(Damage::new("too short for a key"));
        }
        let (mut off, mut above) = (entry, u64::MAX);
        while off != 0 {
            let meta = record::check(&self.heap, key, off)?;
            for block in record::blocks(pm, off, &meta)? {
                if !seen.insert(block) {
                    return Err(Damage::new(format!("block {block:#x} is reached twice")));
                }
            }
            report.versions += 1;
            report.bytes += meta.bytes();
            let header = record::header(pm, off)?;
            let Some(ts) = self.stamp_of(off, header, 0)?.ts() else {
                report.dead += 1;
                off = header.previous(pm);
                continue;
            };
            if ts >= above {
                return Err(Damage::new(format!(
                    "record {off:#x} has timestamp {ts}, behind one of {above}"
                )));
            }
            if ts > self.clock.applied() {
                return Err(Damage::new(format!(
                    "record {off:#x} has timestamp {ts}; the last commit has {}",
                    self.clock.applied()
                )));
            }
            above = ts;
            // `previous` of recovered records is void.
            off = if ts > self.clock.floor() {
                header.previous(pm)
            } else {
                0
            };
        }
        Ok(())
    }
}

impl From<DamagedSlot> for DamagedRecord {
    fn from(slot: DamagedSlot) -> Self {
        Self::at(None, slot.offset, slot.what)
    }
}
