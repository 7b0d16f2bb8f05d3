//! Mending collections that have lost elements, as those of a database that was made of what was
//! whole in a damaged one: heads say what is there again, and both records of a sorted set's
//! member are there.
//!
//! Nobody else uses the databases. Each step is a commit of its own, and mending may be repeated.

use super::Data;
use super::clear::SWEPT;
use super::collection::numbers;
use super::fields::Pair;
use super::locks::Patience;
use super::record::{Kind, Value, expiry_key, expiry_value, is_large};
use super::sorted_set;
use super::spaces::{DATABASES, Space};
use super::tx::Tx;
use crate::error::{CommandError, Outcome};
use std::ops::{Bound, ControlFlow, Range};

/// The most records, and about the most bytes, that are read or written in one step.
const AT_ONCE: usize = 1024;
const BYTES_AT_ONCE: usize = 1 << 20;

/// A collection that has lost elements.
#[derive(Debug)]
pub struct Mended<'a> {
    /// Its database.
    pub db: usize,
    /// Its key.
    pub key: &'a [u8],
    /// How many elements its head says.
    pub had: u64,
    /// How many there are. Without any the key is deleted.
    pub has: u64,
    /// Its head cannot be read: it is left as it is.
    pub is_broken: bool,
}

/// Returns a large collection's value, its id, and the positions of its elements, which count from
/// 0 except in a list; `None` if its head cannot be read.
fn opened(head: &[u8]) -> Option<(Value, u64, Range<u64>)> {
    let value = Value::decode(head, None).ok()?;
    let at = match value.kind {
        Kind::List => numbers(&value.body).map(|[start, end]| start..end),
        _ => numbers(&value.body).map(|[count]| 0..count),
    };
    let (id, at) = (value.id?, at.ok()?);
    Some((value, id, at))
}

impl Data {
    /// Mends all large collections, and tells of those that have lost elements.
    ///
    /// # Errors
    /// [`CommandError`]: a record is damaged, or the store refuses a write.
    pub fn mend(&self, told: &mut dyn FnMut(&Mended<'_>)) -> Outcome {
        for db in 0..DATABASES {
            let mut after = None;
            loop {
                let heads = self.heads(db, after.as_deref())?;
                let Some((last, _)) = heads.last() else {
                    break;
                };
                after = Some(last.clone());
                for (key, head) in heads {
                    self.mend_one(db, &key, &head, told)?;
                }
            }
        }
        // Elements without a head are looked for anew when the databases are opened.
        let (writer, orders) = (self.writer(), &self.spaces().orders);
        writer.delete(orders, SWEPT)?;
        self.settle(self.applied())?;
        Ok(())
    }

    /// Returns some records with heads of large collections, with keys after `after`.
    fn heads(&self, db: usize, after: Option<&[u8]>) -> Result<Vec<Pair>, CommandError> {
        let mut found = Vec::new();
        let mut tx = Tx::new(self, self.writer(), db);
        let range = (
            after.map_or(Bound::Unbounded, Bound::Excluded),
            Bound::Unbounded,
        );
        tx.scan(Space::Keys(db), range, |key, entry| {
            if is_large(entry.value) {
                found.push((key.to_vec(), entry.value.to_vec()));
            }
            if found.len() < AT_ONCE {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        Ok(found)
    }

    fn mend_one(
        &self,
        db: usize,
        key: &[u8],
        head: &[u8],
        told: &mut dyn FnMut(&Mended<'_>),
    ) -> Outcome {
        let Some((before, id, at)) = opened(head) else {
            told(&Mended {
                db,
                key,
                had: 0,
                has: 0,
                is_broken: true,
            });
            return Ok(());
        };
        let had = at.end.saturating_sub(at.start);
        let (has, body) = match before.kind {
            Kind::List => {
                let (first, has) = self.close_gaps(id, at.start)?;
                let body = [first.to_be_bytes(), (first + has).to_be_bytes()].concat();
                (has, body)
            }
            kind => {
                let has = match kind {
                    Kind::SortedSet => self.pair_up(id)?,
                    _ => self.count(&id.to_be_bytes())?,
                };
                (has, has.to_be_bytes().to_vec())
            }
        };
        let _held = self.lock(std::iter::once((db, key)), Patience::Any);
        self.transact(db, |tx| {
            if has == 0 {
                return tx.erase(key, &before);
            }
            // The sweeper finds what has expired by this record, which may be lost too.
            if let Some(at) = before.expires_at {
                let noted = expiry_key(at, tx.order.place(db), key);
                if (tx.get_with(Space::Expiries, &noted, |_| ())?).is_none() {
                    tx.put(Space::Expiries, &noted, expiry_value(key).to_vec(), None)?;
                }
            }
            let after = Value {
                body: body.clone(),
                ..before.clone()
            };
            if after != before {
                tx.save(key, Some(&before), &after)?;
            }
            Ok(())
        })?;
        if has != had {
            told(&Mended {
                db,
                key,
                had,
                has,
                is_broken: false,
            });
        }
        Ok(())
    }

    /// Returns how many elements have keys that begin with `prefix`.
    fn count(&self, prefix: &[u8]) -> Result<u64, CommandError> {
        let mut count = 0;
        let mut tx = Tx::new(self, self.writer(), 0);
        tx.prefix(Space::Elements, prefix, |_, _| {
            count += 1;
            ControlFlow::Continue(())
        })?;
        Ok(count)
    }

    /// Returns some elements whose keys begin with `prefix` and are not below `from`, and the key
    /// after them, if there may be more.
    fn elements(
        &self,
        prefix: &[u8],
        from: &[u8],
    ) -> Result<(Vec<Pair>, Option<Vec<u8>>), CommandError> {
        let (mut found, mut bytes, mut next) = (Vec::new(), 0, None);
        let mut tx = Tx::new(self, self.writer(), 0);
        let range = (Bound::Included(from), Bound::Unbounded);
        tx.scan(Space::Elements, range, |key, entry| {
            if !key.starts_with(prefix) {
                return ControlFlow::Break(());
            }
            if found.len() == AT_ONCE || bytes > BYTES_AT_ONCE {
                next = Some(key.to_vec());
                return ControlFlow::Break(());
            }
            bytes += key.len() + entry.value.len();
            found.push((key.to_vec(), entry.value.to_vec()));
            ControlFlow::Continue(())
        })?;
        Ok((found, next))
    }

    /// Moves the elements of a list together, from position `start` on, or from the first one, if
    /// that comes before. Returns where they begin, and how many there are.
    fn close_gaps(&self, id: u64, start: u64) -> Result<(u64, u64), CommandError> {
        let prefix = id.to_be_bytes();
        let (first, _) = self.elements(&prefix, &prefix)?;
        let first = first
            .first()
            .and_then(|(key, _)| key.get(8..)?.first_chunk());
        // No element moves to a higher position, where another one may be.
        let start = first.map_or(start, |first| start.min(u64::from_be_bytes(*first)));
        let (mut position, mut from) = (start, prefix.to_vec());
        loop {
            let (found, next) = self.elements(&prefix, &from)?;
            let first = position;
            position += found.len() as u64;
            self.transact(0, |tx| {
                for (to, (key, item)) in (first..).zip(&found) {
                    let place = [prefix, to.to_be_bytes()].concat();
                    if place != *key {
                        tx.put(Space::Elements, &place, item.clone(), None)?;
                        tx.delete(Space::Elements, key)?;
                    }
                }
                Ok(())
            })?;
            match next {
                Some(next) => from = next,
                None => return Ok((start, position - start)),
            }
        }
    }

    /// Makes both records of each member of a sorted set, where one of them is there. Where they
    /// contradict each other, that of the member counts. Returns how many members there are.
    fn pair_up(&self, id: u64) -> Result<u64, CommandError> {
        let members = sorted_set::prefix(id, b'm');
        let scores = sorted_set::prefix(id, b's');
        for prefix in [&scores, &members] {
            let mut from = prefix.clone();
            loop {
                let (found, next) = self.elements(prefix, &from)?;
                self.transact(0, |tx| {
                    for (key, value) in &found {
                        if prefix == &members {
                            sorted_set::mend_member(tx, id, key, value)?;
                        } else {
                            sorted_set::mend_score(tx, id, key)?;
                        }
                    }
                    Ok(())
                })?;
                match next {
                    Some(next) => from = next,
                    None => break,
                }
            }
        }
        self.count(&members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;
    use std::collections::BTreeMap;

    /// Deletes records as damage does, and mends the rest: all commands agree on what is left.
    #[test]
    fn what_is_left_is_whole() {
        const ALL: usize = 3000;
        let fixture = Fixture::new();
        let data = fixture.open();
        for n in 0..ALL {
            fixture.call(&data, &format!("hset h f{n} {n}"));
            fixture.call(&data, &format!("sadd s m{n}"));
            fixture.call(&data, &format!("rpush l i{n}"));
            fixture.call(&data, &format!("zadd z {n} m{n}"));
            fixture.call(&data, &format!("rpush whole i{n}"));
        }
        for n in 0..200 {
            fixture.call(&data, &format!("sadd gone m{n}"));
        }
        fixture.call(&data, "pexpireat s 5000");
        let head = |key: &[u8]| {
            let mut tx = data.begin(0);
            tx.load(key).unwrap().unwrap()
        };
        let mut ids = BTreeMap::new();
        for key in ["h", "s", "l", "z", "gone"] {
            ids.insert(key, head(key.as_bytes()).id.unwrap());
        }
        let mut tx = data.begin(0);
        let mut lost: BTreeMap<&str, u64> = BTreeMap::new();
        for (key, id) in &ids {
            let mut all = Vec::new();
            tx.prefix(Space::Elements, &id.to_be_bytes(), |key, _| {
                all.push(key.to_vec());
                ControlFlow::Continue(())
            })
            .unwrap();
            // A run from the middle, single ones, the first and the last; all of one.
            let is_lost = |at: usize| {
                *key == "gone"
                    || at.is_multiple_of(97)
                    || (500..650).contains(&at)
                    || at + 1 == all.len()
            };
            for (at, element) in all.iter().enumerate() {
                if is_lost(at) {
                    tx.delete(Space::Elements, element).unwrap();
                    *lost.entry(key).or_default() += 1;
                }
            }
        }
        let noted = expiry_key(5000, 0, b"s");
        tx.delete(Space::Expiries, &noted).unwrap();
        tx.commit().unwrap();
        // A sorted set has two records of each member, and needs one.
        let mut told = BTreeMap::new();
        data.mend(&mut |mended| {
            let key = String::from_utf8(mended.key.to_vec()).unwrap();
            told.insert(key, (mended.had, mended.has));
        })
        .unwrap();
        let all = ALL as u64;
        for (key, had) in [("h", all), ("s", all), ("l", all), ("gone", 200)] {
            assert_eq!(told[key], (had, had - lost[key]), "{key}");
        }
        assert!(!told.contains_key("whole"));
        let number = |line: &str| {
            let reply = fixture.call(&data, line);
            reply[1..]
                .split("\r\n")
                .next()
                .unwrap()
                .parse::<u64>()
                .unwrap()
        };
        assert_eq!(number("exists gone"), 0);
        assert_eq!(
            (number("hlen h"), number("hgetall h")),
            (told["h"].1, 2 * told["h"].1)
        );
        assert_eq!(
            (number("scard s"), number("smembers s")),
            (told["s"].1, told["s"].1)
        );
        let list = fixture.call(&data, "lrange l 0 -1");
        let items: Vec<&str> = list
            .split("\r\n")
            .filter(|word| word.starts_with('i'))
            .collect();
        assert_eq!(
            (number("llen l"), items.len() as u64),
            (told["l"].1, told["l"].1)
        );
        assert!(items.is_sorted_by_key(|item| item[1..].parse::<u64>().unwrap()));
        let middle = items.len() / 2;
        assert!(
            fixture
                .call(&data, &format!("lindex l {middle}"))
                .contains(items[middle])
        );
        let (by_score, card) = (number("zrange z 0 -1"), number("zcard z"));
        let members = fixture.call(&data, "zrange z 0 -1");
        let named = members.split("\r\n").filter(|word| word.starts_with('m'));
        for member in named.clone() {
            assert!(
                fixture
                    .call(&data, &format!("zscore z {member}"))
                    .contains(&member[1..])
            );
        }
        assert_eq!((by_score, named.count() as u64), (card, card));
        assert!(card > all - lost["z"], "one of two records is enough");
        // The record by which the sweeper finds the expired set is back.
        let mut tx = data.begin(0);
        assert!(tx.get(Space::Expiries, &noted).unwrap().is_some());
        drop(tx);
        // A change of a head that was lost: an element before the first, and a member with two
        // scores.
        let id = |key: &[u8]| head(key).id.unwrap();
        let mut tx = data.begin(0);
        let [start, _] = numbers(&head(b"whole").body).unwrap();
        let before = [id(b"whole").to_be_bytes(), (start - 1).to_be_bytes()].concat();
        tx.put(Space::Elements, &before, b"before".to_vec(), None)
            .unwrap();
        let other = [&sorted_set::prefix(id(b"z"), b's')[..], &[0; 8], b"m10"].concat();
        tx.put(Space::Elements, &other, Vec::new(), None).unwrap();
        tx.put(Space::Keys(0), b"broken", vec![0x85, 1], None)
            .unwrap();
        tx.commit().unwrap();
        let mut told = Vec::new();
        data.mend(&mut |mended| told.push((mended.key.to_vec(), mended.has, mended.is_broken)))
            .unwrap();
        told.sort();
        assert_eq!(
            told,
            [
                (b"broken".to_vec(), 0, true),
                (b"whole".to_vec(), all + 1, false)
            ]
        );
        assert_eq!(number("llen whole"), all + 1);
        assert!(fixture.call(&data, "lindex whole 0").contains("before"));
        assert!(fixture.call(&data, "lindex whole 1").contains("i0"));
        assert_eq!((number("zcard z"), number("zrange z 0 -1")), (card, card));
        let mut tx = data.begin(0);
        tx.delete(Space::Keys(0), b"broken").unwrap();
        tx.commit().unwrap();
        // Once more there is nothing to do.
        data.mend(&mut |mended| panic!("{mended:?}")).unwrap();
    }
}
