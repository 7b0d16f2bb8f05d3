//! Cursors of `SCAN`.
//!
//! A cursor is a number that stands for the last key returned, which this process remembers. An
//! iteration therefore returns every key exactly once that exists all the time. Memory for them is
//! bounded, and the oldest are forgotten first. Cursors of iterations that took their first step
//! only have a bound of their own: abandoned iterations do not displace those in progress.

use rand::RngExt;
use std::collections::BTreeMap;

/// The most bytes of keys that cursors stand for: those of first steps, and all others.
const REMEMBERED: usize = 8 * 1024 * 1024;
/// The approximate memory of a cursor besides its key.
const ENTRY: usize = 100;

/// The keys that cursors stand for.
#[derive(Debug)]
pub struct Cursors {
    next: u64,
    /// Cursors of first steps.
    begun: Room,
    /// Cursors of later steps.
    going_on: Room,
}

/// Cursors that share a bound.
#[derive(Debug, Default)]
struct Room {
    by_number: BTreeMap<u64, Cursor>,
    bytes: usize,
}

impl Room {
    fn forget(&mut self, number: u64) {
        if let Some(cursor) = self.by_number.remove(&number) {
            self.bytes -= cursor.key.len() + ENTRY;
        }
    }

    fn remember(&mut self, number: u64, cursor: Cursor) {
        self.bytes += cursor.key.len() + ENTRY;
        self.by_number.insert(number, cursor);
        while self.bytes > REMEMBERED
            && let Some((&oldest, _)) = self.by_number.first_key_value()
        {
            self.forget(oldest);
        }
    }
}

#[derive(Debug)]
struct Cursor {
    db: usize,
    key: Vec<u8>,
    /// The cursor that it followed. A client may ask for that again until it uses this one.
    before: u64,
}

impl Default for Cursors {
    /// Numbers start at random in each process, so that those of an earlier one are unknown. They
    /// are exact as a `double`.
    fn default() -> Self {
        Self {
            next: rand::rng().random_range(1 << 40..1 << 50),
            begun: Room::default(),
            going_on: Room::default(),
        }
    }
}

impl Cursors {
    /// Returns the key that a cursor stands for. Forgets the cursor that it followed.
    pub(crate) fn find(&mut self, number: u64, db: usize) -> Option<Vec<u8>> {
        let going_on = self.going_on.by_number.get(&number);
        let cursor = going_on.or_else(|| self.begun.by_number.get(&number))?;
        if cursor.db != db {
            return None;
        }
        let (key, before) = (cursor.key.clone(), cursor.before);
        self.begun.forget(before);
        self.going_on.forget(before);
        Some(key)
    }

    /// Returns a cursor that stands for `key` and follows `before`.
    pub(crate) fn remember(&mut self, db: usize, key: Vec<u8>, before: u64) -> u64 {
        let number = self.next;
        self.next += 1;
        let room = if before == 0 {
            &mut self.begun
        } else {
            &mut self.going_on
        };
        room.remember(number, Cursor { db, key, before });
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_stand_for_keys_until_the_next_but_one_is_made() {
        let mut cursors = Cursors::default();
        let one = cursors.remember(0, b"a".to_vec(), 0);
        assert_eq!(cursors.find(one, 0).as_deref(), Some(&b"a"[..]));
        assert_eq!(cursors.find(one, 1), None);
        let two = cursors.remember(0, b"b".to_vec(), one);
        assert!(cursors.find(one, 0).is_some(), "it may be asked for again");
        assert!(cursors.find(two, 0).is_some());
        assert_eq!(cursors.find(one, 0), None);
        assert_eq!(cursors.find(7, 0), None);
    }

    #[test]
    fn no_more_is_remembered_than_there_is_room_for() {
        let mut cursors = Cursors::default();
        let begun = cursors.remember(0, b"a".to_vec(), 0);
        let going_on = cursors.remember(0, b"b".to_vec(), begun);
        let newest = (0..100).fold(0, |_, _| cursors.remember(0, vec![1; 1 << 20], 0));
        assert!(cursors.begun.bytes <= REMEMBERED && cursors.begun.by_number.len() > 5);
        assert_eq!(cursors.find(begun, 0), None);
        assert!(cursors.find(newest, 0).is_some());
        assert!(
            cursors.find(going_on, 0).is_some(),
            "those that are only begun do not drive it out"
        );
        let newest = (0..100).fold(newest, |at, _| cursors.remember(0, vec![1; 1 << 20], at));
        assert!(cursors.going_on.bytes <= REMEMBERED);
        assert_eq!(cursors.find(going_on, 0), None);
        assert!(cursors.find(newest, 0).is_some());
    }
}
