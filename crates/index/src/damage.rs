//! Collecting damage: opening and checking continue where they find damage, to find all of it.
//!
//! Usually the first contradiction ends an opening or a check with an error. A caller that wants to
//! know the extent of the damage, or to save the rest, runs the same functions inside
//! [`collecting_damage`]. Damage is then noted and skipped, as far as that casts no doubt on the
//! rest:
//!
//! | damaged part | noted by |
//! | --- | --- |
//! | the record of a byte string | every design |
//! | another part of a leaf, whose content is skipped | `leaftree` (LB+-Tree, FPTree, wB+-Tree, Crab-tree), NV-Tree |
//! | a part that leads to leaves | no design: it ends the opening or the check, as usual |
//!
//! An index that was opened in this way lacks everything that could not be read. Its pool must be
//! open for reading only.
//!
//! A read compares the checksum of each record that it hands over. A record that fails reads as
//! absent, and [`reading`] tells its caller of it. While damage is collected it is handed over as
//! it is, so that its key can be named.

use bristlecone_pmem::Media;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Maximum number of places whose damage is described. Of others only the offset is kept.
const MAX_DESCRIBED: usize = 1 << 20;

/// Damage that was found: the offset of each damaged block, and what is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// By offset. After the first million descriptions are empty.
    pub blocks: BTreeMap<u64, String>,
}

impl Damage {
    /// Returns the damaged block whose content is `string`, which came from a scan.
    pub fn block_of<M: Media>(&self, pm: &M, string: &[u8]) -> Option<u64> {
        // A string that is part of a node, or a copy, is not in a record.
        let at = string.as_ptr().addr().checked_sub(pm.base().addr())?;
        let block = at.checked_sub(crate::record::HEADER)? as u64;
        self.blocks.contains_key(&block).then_some(block)
    }
}

thread_local! {
    static FOUND: RefCell<Option<Damage>> = const { RefCell::new(None) };
    /// The first damage that reads of this thread have met, while somebody asks.
    static MET: RefCell<Option<Option<String>>> = const { RefCell::new(None) };
}

/// Runs `work`, which reads an index, or opens one, in this thread. Returns also the first damage
/// that it met: what it says to be absent may then be damaged instead.
pub fn reading<R>(work: impl FnOnce() -> R) -> (R, Option<String>) {
    /// Ends the listening, even if `work` panics.
    struct End(Option<Option<String>>);
    impl Drop for End {
        fn drop(&mut self) {
            MET.with(|met| met.replace(self.0.take()));
        }
    }
    let end = End(MET.with(|met| met.replace(Some(None))));
    let result = work();
    let met = MET.with(|met| met.replace(None)).flatten();
    drop(end);
    (result, met)
}

/// Notes damage that a read has met. Returns true if it is to be handed over in spite of it.
#[cold]
pub fn met(what: impl FnOnce() -> String) -> bool {
    ask(what);
    collecting()
}

/// Notes damage that an opening has met. Returns true if somebody asks for it.
pub(crate) fn tell(what: &str) -> bool {
    ask(|| what.to_owned())
}

/// Notes `what` if it is the first that somebody who asks is told. Returns true if somebody does.
fn ask(what: impl FnOnce() -> String) -> bool {
    MET.with(|met| {
        met.borrow_mut().as_mut().is_some_and(|met| {
            met.get_or_insert_with(what);
            true
        })
    })
}

/// Runs `work` and collects the damage that it finds. In it, only this thread opens and checks
/// indexes (`recovery_threads` is 1).
pub fn collecting_damage<R>(work: impl FnOnce() -> R) -> (R, Damage) {
    /// Ends the collecting, even if `work` panics.
    struct End(Option<Damage>);
    impl Drop for End {
        fn drop(&mut self) {
            FOUND.with(|found| found.replace(self.0.take()));
        }
    }
    let end = End(FOUND.with(|found| found.replace(Some(Damage::default()))));
    let result = work();
    let damage = FOUND.with(|found| found.replace(None)).unwrap_or_default();
    drop(end);
    (result, damage)
}

/// Returns true if damage is being collected.
pub fn collecting() -> bool {
    FOUND.with(|found| found.borrow().is_some())
}

/// Returns true if any damage has been collected so far.
#[must_use]
pub fn any() -> bool {
    FOUND.with(|found| {
        let found = found.borrow();
        found.as_ref().is_some_and(|found| !found.blocks.is_empty())
    })
}

/// Notes that the block at `off` is damaged, if damage is being collected.
///
/// # Errors
/// `what`, if damage is not being collected.
pub fn note<E: ToString>(off: u64, what: E) -> Result<(), E> {
    FOUND.with(|found| {
        let mut found = found.borrow_mut();
        let Some(found) = found.as_mut() else {
            return Err(what);
        };
        let described = found.blocks.len() < MAX_DESCRIBED;
        found.blocks.entry(off).or_insert_with(|| {
            if described {
                what.to_string()
            } else {
                String::new()
            }
        });
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_noted_while_it_is_collected() {
        assert_eq!(note(1, "a"), Err("a"));
        let ((), damage) = collecting_damage(|| {
            assert!(collecting() && !any());
            assert_eq!(
                (note(7, "a"), note(9, "b"), note(7, "c")),
                (Ok(()), Ok(()), Ok(()))
            );
            assert!(any());
        });
        let found: Vec<_> = damage.blocks.into_iter().collect();
        assert_eq!(found, [(7, "a".to_owned()), (9, "b".to_owned())]);
        assert!(!collecting());
        let panicked = std::panic::catch_unwind(|| collecting_damage(|| panic!("meant to")));
        assert!(panicked.is_err() && !collecting());
    }

    #[test]
    fn reads_tell_of_the_first_damage_that_they_meet() {
        let say = |what: &str| met(|| what.to_owned());
        assert!(!say("nobody asks"));
        let ((), none) = reading(|| ());
        assert_eq!(none, None);
        let (inner, first) = reading(|| {
            assert!(!say("a") && !say("b"));
            reading(|| say("c")).1
        });
        assert_eq!((inner.as_deref(), first.as_deref()), (Some("c"), Some("a")));
        let (past, _) = collecting_damage(|| reading(|| say("d")));
        assert_eq!(past, (true, Some("d".into())));
        let panicked = std::panic::catch_unwind(|| reading(|| panic!("meant to")));
        assert!(panicked.is_err() && MET.with(|met| met.borrow().is_none()));
    }
}
