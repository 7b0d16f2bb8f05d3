//! Serving clients that wait for a key.
//!
//! The writer that puts such a key takes the element for the client that has waited longest, in a
//! commit of its own, before it releases its locks. No other client comes between the write and
//! that client. A waiter that moves its element also needs the lock of the destination;
//! [`Data::lock`] takes it with the others.

use crate::data::Data;
use crate::data::locks::{Held, Patience};
use crate::data::spaces::Name;
use crate::data::tx::Waiter;
use crate::error::CommandError;
use crate::reply::MAX_REPLY_BYTES;
use std::collections::{BTreeSet, VecDeque};

/// A key: its database and its name.
type Key<'k> = (usize, &'k [u8]);

impl Data {
    /// Locks keys that are to be written, and those that serving their waiters may write. Returns
    /// `None` only if a patience of [`Patience::Short`] ends.
    pub(crate) fn lock<'k>(
        &self,
        keys: impl Iterator<Item = Key<'k>> + Clone,
        patience: Patience,
    ) -> Option<Held<'_>> {
        let mut held = self.locks.keys(keys.clone(), patience)?;
        if !self.waiting.any() {
            return Some(held);
        }
        let mut others = BTreeSet::new();
        loop {
            // While the keys are locked, no client enters their queues.
            let names = keys.clone().map(|(_, name)| name);
            let found = self.waiting.destinations(names);
            if found.is_subset(&others) {
                return Some(held);
            }
            drop(held);
            others.extend(found);
            let keys: Vec<Key<'k>> = keys.clone().collect();
            held = self.lock_all(&keys, &others, patience)?;
        }
    }

    fn lock_all<'k>(
        &self,
        keys: &[Key<'k>],
        others: &'k BTreeSet<Vec<u8>>,
        patience: Patience,
    ) -> Option<Held<'_>> {
        // A lock is that of a name in all databases.
        let others = others.iter().map(|name| (0, name.as_slice()));
        (self.locks).keys(keys.iter().copied().chain(others), patience)
    }

    /// Serves the clients that wait for keys that were just put, in the order of the writes. The
    /// caller holds the locks of [`lock`](Self::lock).
    pub(crate) fn serve(&self, put: Vec<Name>) {
        let mut put = VecDeque::from(put);
        while let Some(key) = put.pop_front() {
            let mut last = 0;
            while let Some(waiter) = self.waiting.next(&key, last) {
                last = waiter.number;
                match self.serve_one(&waiter, &key.1) {
                    Ok(Some(more)) => put.extend(more),
                    Ok(None) => break,
                    Err(e) => {
                        tracing::error!(error = %e, "reading a key that clients wait for failed");
                        break;
                    }
                }
            }
        }
    }

    /// Gives a waiter what it takes from `key`. Returns the keys that this puts; `None` if `key`
    /// does not exist.
    fn serve_one(&self, waiter: &Waiter, key: &[u8]) -> Result<Option<Vec<Name>>, CommandError> {
        let mut tx = self.begin(waiter.db);
        let Some(head) = tx.load_head_from(waiter.db, key)? else {
            return Ok(None);
        };
        let end = waiter.end();
        if end.reached || head.kind != waiter.wants.take.kind() {
            return Ok(Some(Vec::new()));
        }
        drop(tx);
        let mut put = Ok(None);
        let mut encoded = waiter.encoded(|out| {
            let mark = out.mark();
            let done = self.transact(waiter.db, |tx| {
                out.truncate(mark);
                let took = waiter.wants.take.run(tx, key, out)?;
                if out.overflowed() {
                    let text = format!("ERR the reply takes more than {MAX_REPLY_BYTES} bytes");
                    return Err(CommandError::reply(text));
                }
                Ok(took)
            });
            put = done.map(|(took, put)| took.then_some(put));
        });
        let put = match put {
            Ok(Some(put)) => put,
            // It has expired since it was looked at: there is no reply.
            Ok(None) => return Ok(None),
            Err(e) => {
                encoded = waiter.encoded(|out| out.error(&e.to_string()));
                Vec::new()
            }
        };
        self.waiting.finish(waiter, end, encoded);
        Ok(Some(put))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::record::Kind;
    use crate::data::spaces::Space;
    use crate::data::tx::{Take, Tx, Wants};
    use crate::fixture::Fixture;
    use crate::reply::{Out, Protocol};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Takes a list, which expires and is swept before that is committed.
    #[derive(Debug)]
    struct TooSlow(Arc<AtomicU64>);

    impl Take for TooSlow {
        fn kind(&self) -> Kind {
            Kind::List
        }

        fn run(
            &self,
            tx: &mut Tx<'_>,
            key: &[u8],
            out: &mut Out<'_>,
        ) -> Result<bool, CommandError> {
            if tx.load_kind(key, Kind::List)?.is_none() {
                return Ok(false);
            }
            tx.snapshot();
            tx.delete(Space::Keys(0), key)?;
            out.ok();
            self.0.store(1000, Ordering::SeqCst);
            let swept = tx.data().store().vacuum_all().unwrap();
            assert_eq!(swept.expired, 1);
            Ok(true)
        }
    }

    /// Its client got an empty reply, and from then on those of other commands.
    #[test]
    fn who_waits_for_a_key_that_expires_meanwhile_goes_on_waiting() {
        let fixture = Fixture::new();
        let data = fixture.open();
        fixture.at(500);
        fixture.call(&data, "rpush a x");
        fixture.call(&data, "pexpireat a 1000");
        let wants = Wants {
            keys: vec![b"a".to_vec()],
            take: Box::new(TooSlow(fixture.clock())),
            destination: None,
            timeout: None,
        };
        let waiter = data.waiting.enter(0, wants, Protocol::Resp2);
        data.serve(vec![(0, b"a".to_vec())]);
        assert!(!waiter.end().reached);
        assert_eq!(waiter.take_reply(), b"");
        assert_eq!(fixture.call(&data, "exists a"), ":0\r\n");
    }
}
