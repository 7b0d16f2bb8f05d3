//! A disk with a volatile write cache, as its contents.
//!
//! A write goes to the cache, and a flush, or the flag FUA of a write, makes it durable. A flush
//! takes some milliseconds, and covers what was written before it began. Otherwise a disk writes
//! back what it likes, when it likes. So each sector has a list of its states: the durable one, and
//! one for each write since. A power cut leaves each sector in any of its states, independently of
//! all others: writes are lost, kept, reordered, and torn at sectors.

use super::draw::Draw;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The longest time that a flush takes, in microseconds.
const FLUSH: u64 = 20_000;
/// Bytes that are written wholly or not at all.
pub const SECTOR: usize = 512;
/// Sectors of a page.
const PAGE: u64 = 8;
/// Age at which a disk that lies about flushes has written something back all the same.
const LYING: Duration = Duration::from_millis(300);

/// A disk.
pub struct Disk {
    durable: Vec<u8>,
    /// By sector: its states since the durable one, never an empty list.
    cache: BTreeMap<u64, Vec<Written>>,
    /// Flushes are acknowledged, and do nothing.
    lies: bool,
    /// Writes so far.
    writes: u64,
    power: Power,
    /// For the time that flushes take.
    draw: Draw,
}

/// Whether the disk works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Power {
    On,
    /// Goes off in the midst of the last of so many writes.
    Ending(u64),
    Off,
}

/// A flush that has begun.
pub struct Flush {
    sectors: Range<u64>,
    /// Writes with lower numbers become durable.
    before: u64,
    /// The time that it takes.
    pub takes: Duration,
}

/// A sector's state since the durable one.
struct Written {
    number: u64,
    at: Instant,
    bytes: Box<[u8; SECTOR]>,
}

/// The effect of a power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Sectors whose newest state was not durable.
    pub unflushed: u64,
    /// Those of them that lost it.
    pub lost: u64,
    /// Pages of eight sectors of which some lost theirs and others did not.
    pub torn: u64,
}

impl std::ops::AddAssign for Cut {
    fn add_assign(&mut self, other: Self) {
        self.unflushed += other.unflushed;
        self.lost += other.lost;
        self.torn += other.torn;
    }
}

impl Disk {
    /// A disk of zeros, of so many bytes: a multiple of [`SECTOR`].
    pub fn new(bytes: usize, lies: bool, draw: Draw) -> Self {
        Self {
            durable: vec![0; bytes],
            cache: BTreeMap::new(),
            lies,
            writes: 0,
            power: Power::Off,
            draw,
        }
    }

    /// Powers the disk on.
    pub fn power_on(&mut self) {
        self.power = Power::On;
    }

    /// Has the power go off after so many further writes, the last of which is not acknowledged; at
    /// once if none.
    pub fn power_off_after(&mut self, writes: u64) {
        self.power = match writes {
            0 => Power::Off,
            writes => Power::Ending(writes),
        };
    }

    /// Returns true if the power is off: what the disk is asked now it does not do, nor answer.
    pub fn is_off(&self) -> bool {
        self.power == Power::Off
    }

    /// Returns its size in bytes.
    pub fn len(&self) -> usize {
        self.durable.len()
    }

    /// Returns the sectors of these bytes, if they are whole sectors of the disk.
    pub fn sectors(&self, offset: u64, bytes: usize) -> Option<Range<u64>> {
        let (sector, end) = (SECTOR as u64, offset.checked_add(bytes as u64)?);
        (offset.is_multiple_of(sector)
            && end.is_multiple_of(sector)
            && end <= self.durable.len() as u64)
            .then(|| offset / sector..end / sector)
    }

    fn place(sector: u64) -> Range<usize> {
        let at = sector as usize * SECTOR;
        at..at + SECTOR
    }

    /// Returns the newest state of these sectors.
    pub fn read(&self, sectors: Range<u64>) -> Vec<u8> {
        let mut bytes = self.durable[Self::place(sectors.start).start..]
            [..(sectors.end - sectors.start) as usize * SECTOR]
            .to_vec();
        for (sector, states) in self.cache.range(sectors.clone()) {
            if let Some(newest) = states.last() {
                bytes[Self::place(sector - sectors.start)].copy_from_slice(&*newest.bytes);
            }
        }
        bytes
    }

    /// Writes these sectors.
    pub fn write(&mut self, sectors: Range<u64>, bytes: &[u8]) {
        let (whole, _) = bytes.as_chunks::<SECTOR>();
        for (sector, bytes) in sectors.zip(whole) {
            self.cache.entry(sector).or_default().push(Written {
                number: self.writes,
                at: Instant::now(),
                bytes: Box::new(*bytes),
            });
        }
        self.writes += 1;
        if let Power::Ending(writes) = self.power {
            self.power_off_after(writes - 1);
        }
    }

    /// Begins a flush of these sectors.
    pub fn begin_flush(&mut self, sectors: Range<u64>) -> Flush {
        Flush {
            sectors,
            before: self.writes,
            takes: Duration::from_micros(self.draw.below(FLUSH)),
        }
    }

    /// Ends a flush: everything is durable that was written before it began.
    pub fn end_flush(&mut self, flush: Flush) {
        let covered = |written: &Written| {
            written.number < flush.before && (!self.lies || written.at.elapsed() > LYING)
        };
        let mut clean = Vec::new();
        for (sector, states) in self.cache.range_mut(flush.sectors) {
            let count = states.iter().filter(|written| covered(written)).count();
            if let Some(newest) = states.drain(..count).next_back() {
                self.durable[Self::place(*sector)].copy_from_slice(&*newest.bytes);
            }
            if states.is_empty() {
                clean.push(*sector);
            }
        }
        for sector in clean {
            self.cache.remove(&sector);
        }
    }

    /// Cuts the power, if it is not off yet, and takes from each sector what the cache had not
    /// written back.
    pub fn cut(&mut self, draw: &mut Draw) -> Cut {
        self.power = Power::Off;
        // Of some cuts everything is lost, of some nearly nothing; some tear pages, others do not.
        let loss = [100, 80, 50, 50, 30, 10][draw.below(6) as usize];
        let grain = [1, 1, PAGE][draw.below(3) as usize];
        let mut cut = Cut::default();
        let mut last = None;
        let (mut lost, mut which) = (false, 0);
        let (mut page, mut in_page) = (None, [0_u64; 2]);
        for (sector, mut states) in std::mem::take(&mut self.cache) {
            if last != Some(sector / grain) {
                last = Some(sector / grain);
                lost = draw.below(100) < loss;
                which = draw.word();
            }
            if page != Some(sector / PAGE) {
                cut.torn += u64::from(in_page[0] > 0 && in_page[1] > 0);
                (page, in_page) = (Some(sector / PAGE), [0; 2]);
            }
            // One of the older states: number 0 is the durable one.
            let kept = if lost {
                which % states.len() as u64
            } else {
                states.len() as u64
            } as usize;
            if kept > 0 {
                let state = states.swap_remove(kept - 1);
                self.durable[Self::place(sector)].copy_from_slice(&*state.bytes);
            }
            in_page[usize::from(lost)] += 1;
            cut.unflushed += 1;
            cut.lost += u64::from(lost);
        }
        cut.torn += u64::from(in_page[0] > 0 && in_page[1] > 0);
        cut
    }

    /// Returns the durable contents.
    pub fn contents(&self) -> &[u8] {
        &self.durable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(with: u8, sectors: usize) -> Vec<u8> {
        vec![with; sectors * SECTOR]
    }

    fn flush(disk: &mut Disk) {
        let flush = disk.begin_flush(0..u64::MAX);
        disk.end_flush(flush);
    }

    #[test]
    fn what_was_flushed_survives_and_the_rest_is_any_of_its_states() {
        let mut seen = [[0; 4]; 2];
        let mut torn = 0;
        for seed in 0..300 {
            let mut disk = Disk::new(32 * SECTOR, false, Draw::of(seed, 1));
            disk.write(0..16, &filled(1, 16));
            flush(&mut disk);
            let late = disk.begin_flush(0..u64::MAX);
            disk.write(0..8, &filled(2, 8));
            disk.end_flush(late);
            disk.write(0..4, &filled(3, 4));
            disk.write(16..17, &filled(4, 1));
            let durable = disk.begin_flush(16..17);
            disk.end_flush(durable);
            assert_eq!(disk.read(2..6), [filled(3, 2), filled(2, 2)].concat());
            let cut = disk.cut(&mut Draw::of(seed, 0));
            assert_eq!(cut.unflushed, 8);
            assert_eq!(disk.read(8..16), filled(1, 8));
            assert_eq!(disk.read(16..17), filled(4, 1));
            let first: Vec<u8> = disk.read(0..8).chunks(SECTOR).map(|s| s[0]).collect();
            assert!(first[..4].iter().all(|b| (1..=3).contains(b)));
            assert!(first[4..].iter().all(|b| (1..=2).contains(b)));
            let newest = [3, 3, 3, 3, 2, 2, 2, 2];
            let states = first.iter().zip(newest);
            let lost = states.filter(|(b, newest)| *b != newest).count();
            assert_eq!(cut.lost, lost as u64);
            assert_eq!(cut.torn, u64::from(lost > 0 && lost < 8));
            torn += cut.torn;
            seen[0][usize::from(first[0])] += 1;
            seen[1][usize::from(first[7])] += 1;
        }
        let [first, last] = seen;
        assert!(first[1] > 20 && first[2] > 20 && first[3] > 50, "{seen:?}");
        assert!(last[1] > 50 && last[2] > 50, "{seen:?}");
        assert!(torn > 50, "{torn}");
    }

    #[test]
    fn a_disk_that_lies_loses_what_was_flushed() {
        let lying = |seed| {
            let mut disk = Disk::new(8 * SECTOR, true, Draw::of(seed, 1));
            disk.write(0..8, &filled(1, 8));
            flush(&mut disk);
            assert_eq!(disk.read(0..8), filled(1, 8));
            disk
        };
        assert!((0..20).any(|seed| lying(seed).cut(&mut Draw::of(seed, 0)).lost > 0));
        let mut disk = lying(1);
        std::thread::sleep(LYING);
        flush(&mut disk);
        assert_eq!(disk.cut(&mut Draw::of(1, 0)).unflushed, 0);
    }

    #[test]
    fn the_power_goes_off_in_a_write() {
        let mut disk = Disk::new(8 * SECTOR, false, Draw::of(1, 1));
        assert!(disk.is_off());
        disk.power_on();
        disk.power_off_after(2);
        disk.write(0..1, &filled(1, 1));
        assert!(!disk.is_off());
        disk.write(1..2, &filled(2, 1));
        assert!(disk.is_off());
        assert_eq!(disk.cut(&mut Draw::of(1, 0)).unflushed, 2);
    }

    #[test]
    fn only_whole_sectors_of_the_disk_are_taken() {
        let disk = Disk::new(8 * SECTOR, false, Draw::of(1, 1));
        assert_eq!(disk.sectors(512, 1024), Some(1..3));
        for (offset, bytes) in [(1, 512), (0, 500), (7 * 512, 1024), (u64::MAX - 511, 512)] {
            assert_eq!(disk.sectors(offset, bytes), None);
        }
    }
}
