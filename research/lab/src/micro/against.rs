//! The peers' side of a comparison.
//!
//! | peer | what it is | threads |
//! | --- | --- | --- |
//! | [`Against::BTreeMap`] | `std::collections::BTreeMap`: volatile, the speed of plain memory | bare on one thread, behind an `RwLock` on more |
//! | [`Against::Lmdb`] | LMDB in its faster mode, one synced commit per call | its own: one writer, many readers |
//! | [`Against::LmdbNoWriteMap`] | LMDB in its default mode | the same |

use super::drive::{self, Session, Slice};
use super::{Against, Contender, MicroParams, Op};
use crate::LabError;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{PoisonError, RwLock};

/// Returns a contender for each of `params.against`. Their files are in `dir`.
pub(crate) fn contenders(
    params: &MicroParams,
    dir: &Path,
) -> Result<Vec<Box<dyn Contender>>, LabError> {
    let one = |against: &Against| match against {
        Against::BTreeMap => Ok(Box::<Volatile>::default() as Box<dyn Contender>),
        Against::Lmdb | Against::LmdbNoWriteMap => lmdb(*against, params, dir),
    };
    params.against.iter().map(one).collect()
}

#[cfg(not(feature = "peers"))]
fn lmdb(which: Against, _: &MicroParams, _: &Path) -> Result<Box<dyn Contender>, LabError> {
    Err(LabError::NeedsFeature {
        what: format!("the peer {which}"),
        feature: "peers",
    })
}

#[cfg(feature = "peers")]
fn lmdb(which: Against, params: &MicroParams, dir: &Path) -> Result<Box<dyn Contender>, LabError> {
    use bristlecone_peers::lmdb::{Lmdb, Mode};
    /// Reserved address space of a pair: several times what LMDB needs.
    const BYTES_PER_KEY: u64 = 256;
    const STEP: u64 = 1 << 30;
    let mode = match which {
        Against::LmdbNoWriteMap => Mode::Write,
        _ => Mode::WriteMap,
    };
    let dir = dir.join(which.name());
    std::fs::create_dir(&dir).map_err(|e| LabError::io(&dir, "making a directory", e))?;
    let bytes = params
        .keys
        .saturating_mul(BYTES_PER_KEY)
        .max(STEP)
        .next_multiple_of(STEP);
    let bytes = usize::try_from(bytes)
        .map_err(|_| LabError::parameter("keys", params.keys, "what this machine can address"))?;
    Ok(Box::new(Durable {
        name: which.name(),
        peer: Lmdb::open(&dir, mode, bytes)?,
    }))
}

/// `BTreeMap`.
#[derive(Default)]
struct Volatile {
    map: RwLock<BTreeMap<u64, u64>>,
}

impl Contender for Volatile {
    fn name(&self) -> &'static str {
        Against::BTreeMap.name()
    }

    fn slice(
        &mut self,
        op: Op,
        keys: &[u64],
        threads: usize,
        batch: usize,
    ) -> Result<Slice, LabError> {
        let name = self.name();
        if threads == 1 {
            let map = self.map.get_mut().unwrap_or_else(PoisonError::into_inner);
            return drive::slice(name, vec![map], op, keys, batch);
        }
        let sessions = (0..threads).map(|_| &self.map).collect();
        drive::slice(name, sessions, op, keys, batch)
    }
}

fn visit(map: &BTreeMap<u64, u64>, from: u64, limit: usize) -> (Option<u64>, usize) {
    let (mut first, mut visited, mut sum) = (None, 0, 0_u64);
    for (key, value) in map.range(from..).take(limit) {
        first.get_or_insert(*key);
        sum = sum.wrapping_add(*value);
        visited += 1;
    }
    std::hint::black_box(sum);
    (first, visited)
}

impl Session for &mut BTreeMap<u64, u64> {
    #[inline]
    fn insert(&mut self, key: u64, value: u64) -> Result<bool, Box<LabError>> {
        Ok(BTreeMap::insert(self, key, value).is_none())
    }

    #[inline]
    fn update(&mut self, key: u64, value: u64) -> Result<bool, Box<LabError>> {
        Ok(self.get_mut(&key).map(|slot| *slot = value).is_some())
    }

    #[inline]
    fn remove(&mut self, key: u64) -> Result<bool, Box<LabError>> {
        Ok(BTreeMap::remove(self, &key).is_some())
    }

    #[inline]
    fn get(&mut self, key: u64) -> Result<Option<u64>, Box<LabError>> {
        Ok(BTreeMap::get(self, &key).copied())
    }

    #[inline]
    fn scan(&mut self, from: u64, limit: usize) -> Result<(Option<u64>, usize), Box<LabError>> {
        Ok(visit(self, from, limit))
    }

    #[inline]
    fn multi_get(&mut self, keys: &[u64], out: &mut Vec<Option<u64>>) -> Result<(), Box<LabError>> {
        out.clear();
        out.extend(keys.iter().map(|key| BTreeMap::get(self, key).copied()));
        Ok(())
    }

    #[inline]
    fn multi_insert(&mut self, pairs: &[(u64, u64)]) -> Result<u64, Box<LabError>> {
        let added = pairs
            .iter()
            .filter(|(k, v)| BTreeMap::insert(self, *k, *v).is_none())
            .count();
        Ok(added as u64)
    }
}

impl Session for &RwLock<BTreeMap<u64, u64>> {
    #[inline]
    fn insert(&mut self, key: u64, value: u64) -> Result<bool, Box<LabError>> {
        Session::insert(
            &mut &mut *self.write().unwrap_or_else(PoisonError::into_inner),
            key,
            value,
        )
    }

    #[inline]
    fn update(&mut self, key: u64, value: u64) -> Result<bool, Box<LabError>> {
        Session::update(
            &mut &mut *self.write().unwrap_or_else(PoisonError::into_inner),
            key,
            value,
        )
    }

    #[inline]
    fn remove(&mut self, key: u64) -> Result<bool, Box<LabError>> {
        Session::remove(
            &mut &mut *self.write().unwrap_or_else(PoisonError::into_inner),
            key,
        )
    }

    #[inline]
    fn get(&mut self, key: u64) -> Result<Option<u64>, Box<LabError>> {
        Ok(self
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&key)
            .copied())
    }

    #[inline]
    fn scan(&mut self, from: u64, limit: usize) -> Result<(Option<u64>, usize), Box<LabError>> {
        Ok(visit(
            &self.read().unwrap_or_else(PoisonError::into_inner),
            from,
            limit,
        ))
    }

    #[inline]
    fn multi_get(&mut self, keys: &[u64], out: &mut Vec<Option<u64>>) -> Result<(), Box<LabError>> {
        let map = self.read().unwrap_or_else(PoisonError::into_inner);
        out.clear();
        out.extend(keys.iter().map(|key| map.get(key).copied()));
        Ok(())
    }

    #[inline]
    fn multi_insert(&mut self, pairs: &[(u64, u64)]) -> Result<u64, Box<LabError>> {
        let mut map = self.write().unwrap_or_else(PoisonError::into_inner);
        Session::multi_insert(&mut &mut *map, pairs)
    }
}

/// A durable peer.
#[cfg(feature = "peers")]
struct Durable<P> {
    name: &'static str,
    peer: P,
}

#[cfg(feature = "peers")]
mod durable {
    use super::{Contender, Durable, LabError, Op, Session, Slice, drive};
    use bristlecone_peers::{Peer, PeerError};

    impl<P: Peer> Contender for Durable<P> {
        fn name(&self) -> &'static str {
            self.name
        }

        fn slice(
            &mut self,
            op: Op,
            keys: &[u64],
            threads: usize,
            batch: usize,
        ) -> Result<Slice, LabError> {
            let sessions = (0..threads).map(|_| Use(&self.peer)).collect();
            drive::slice(self.name, sessions, op, keys, batch)
        }

        fn stored_bytes(&self) -> Result<Option<u64>, LabError> {
            Ok(Some(self.peer.stored_bytes()?))
        }
    }

    /// One thread's use of a peer.
    struct Use<'a, P>(&'a P);

    fn refused(e: PeerError) -> Box<LabError> {
        Box::new(LabError::Peer(e))
    }

    impl<P: Peer> Session for Use<'_, P> {
        fn insert(&mut self, key: u64, value: u64) -> Result<bool, Box<LabError>> {
            self.0.insert(key, value).map_err(refused)
        }

        fn update(&mut self, key: u64, value: u64) -> Result<bool, Box<LabError>> {
            // A plain put is cheaper for the peer than a lookup first, and every updated key
            // exists.
            self.0.put(key, value).map(|()| true).map_err(refused)
        }

        fn remove(&mut self, key: u64) -> Result<bool, Box<LabError>> {
            self.0.remove(key).map_err(refused)
        }

        fn get(&mut self, key: u64) -> Result<Option<u64>, Box<LabError>> {
            self.0.get(key).map_err(refused)
        }

        fn scan(&mut self, from: u64, limit: usize) -> Result<(Option<u64>, usize), Box<LabError>> {
            let (mut first, mut visited, mut sum) = (None, 0, 0_u64);
            let visit = |key, value| {
                first.get_or_insert(key);
                sum = sum.wrapping_add(value);
                visited += 1;
            };
            self.0.scan(from, limit, visit).map_err(refused)?;
            std::hint::black_box(sum);
            Ok((first, visited))
        }

        fn multi_get(
            &mut self,
            keys: &[u64],
            out: &mut Vec<Option<u64>>,
        ) -> Result<(), Box<LabError>> {
            self.0.multi_get(keys, out).map_err(refused)
        }

        fn multi_insert(&mut self, pairs: &[(u64, u64)]) -> Result<u64, Box<LabError>> {
            self.0.multi_insert(pairs).map_err(refused)
        }
    }
}
