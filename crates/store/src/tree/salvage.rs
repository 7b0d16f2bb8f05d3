//! Reading what a damaged store on a tree still has.

use super::ALL;
use super::long;
use super::names::Names;
use super::parts;
use super::value::{Found, Marker};
use crate::entry::{Entry, expires_at};
use crate::error::{Damage, StoreError};
use crate::key::{CATALOGUE, split};
use crate::limits::MAX_KEY_BYTES;
use crate::report::{SalvageReport, Salvaged};
use crate::root::StoreRoot;
use bristlecone_index::Violation;
use bristlecone_index::clustered::{
    ClusteredOptions, Current, Glimpse, HostedTree, Observed, Observer, ReadError, When,
};
use bristlecone_pmem::{Media, Pool};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Bytes of the longest key, with the number of its keyspace.
const LONGEST: usize = size_of::<u32>() + MAX_KEY_BYTES;

/// Nobody changes the store.
#[derive(Debug)]
struct Nobody;

impl Observer for Nobody {
    fn weigh(&self, _: Glimpse<'_>) -> u64 {
        0
    }

    fn changed(&self, _: Observed<'_>) {}
}

/// A damaged key, or a damaged page, which is named by the key that it begins with.
struct Wrong {
    key: Vec<u8>,
    what: String,
}

struct Walk<'t, M: Media> {
    tree: &'t HostedTree<M>,
    now: u64,
    names: Names,
    /// What the keys of each space begin with in the tree, whose marker has been seen.
    beginnings: BTreeMap<Vec<u8>, Vec<u8>>,
    walked: u64,
    /// The first page that could not be read.
    violation: Option<Violation>,
}

/// Visits what the store of that root has.
///
/// # Errors
/// [`StoreError`]: the tree as a whole is damaged.
pub(crate) fn salvage<M: Media>(
    pool: &Arc<Pool<M>>,
    store: &StoreRoot<M>,
    now: u64,
    visit: &mut dyn FnMut(Salvaged<'_>) -> ControlFlow<()>,
) -> Result<SalvageReport, StoreError> {
    let node_bytes = super::open::page_bytes_of(pool, &store.index_name);
    let options = ClusteredOptions {
        page_bytes: node_bytes,
    };
    let tree = HostedTree::open(pool, &store.index_name, &options, Arc::new(Nobody))?;
    let mut walk = Walk {
        tree: &tree,
        now,
        names: Names::read(&tree),
        beginnings: BTreeMap::new(),
        walked: 0,
        violation: None,
    };
    for damaged in &walk.names.damage {
        let key = damaged.index_key.as_deref().unwrap_or_default();
        let flow = visit(Salvaged {
            keyspace: None,
            number: CATALOGUE,
            key: split(key).map_or(key, |(_, name)| name),
            found: Err(Damage::new(damaged.what.clone()).into()),
        });
        if flow.is_break() {
            return Ok(walk.report(node_bytes));
        }
    }
    walk.entries(visit);
    Ok(walk.report(node_bytes))
}

impl<M: Media> Walk<'_, M> {
    fn report(self, node_bytes: u32) -> SalvageReport {
        SalvageReport {
            design: super::open::DESIGN.to_owned(),
            node_bytes,
            keyspaces: self
                .names
                .named
                .values()
                .map(|name| name.to_string())
                .collect(),
            indexed: self.walked,
            walked: self.walked,
            violation: self.violation,
            passed: self.tree.passed().to_vec(),
        }
    }

    /// Visits everything, with each page that cannot be read where it is.
    fn visit(
        &mut self,
        mut each: impl FnMut(&mut Self, &[u8], Result<&Current<'_, M>, &str>) -> ControlFlow<()>,
    ) {
        let walk = RefCell::new((self, Vec::<Wrong>::new()));
        let tree = walk.borrow().0.tree;
        let mut broken = false;
        let scanned = tree.rescue(
            ALL,
            |key, current| {
                let (walk, wrong) = &mut *walk.borrow_mut();
                walk.walked += 1;
                for wrong in wrong.drain(..) {
                    if each(walk, &wrong.key, Err(&wrong.what)).is_break() {
                        broken = true;
                        return Ok(ControlFlow::Break(()));
                    }
                }
                let flow = each(walk, key, Ok(current));
                broken |= flow.is_break();
                Ok(flow)
            },
            |lost, what| {
                let (walk, wrong) = &mut *walk.borrow_mut();
                walk.violation
                    .get_or_insert_with(|| Violation::new(what.to_owned()));
                let (key, what) = (lost.key().to_vec(), what.to_owned());
                wrong.push(Wrong { key, what });
            },
        );
        let (walk, wrong) = walk.into_inner();
        if let Err(e) = scanned {
            walk.violation
                .get_or_insert_with(|| Violation::new(e.to_string()));
        }
        for wrong in wrong.into_iter().take_while(|_| !broken) {
            if each(walk, &wrong.key, Err(&wrong.what)).is_break() {
                return;
            }
        }
    }

    /// Returns the key of an entry, with the beginning of a long one; `None` for a marker, which
    /// is noted. A key whose marker is lost lacks its beginning.
    fn whole_key<'k>(
        &mut self,
        key: &'k [u8],
        current: &Result<&Current<'_, M>, &str>,
    ) -> Option<Cow<'k, [u8]>> {
        if let Ok(current) = current
            && long::is_marker::<M>(key)
        {
            // One that cannot be read leads nowhere.
            let id = current
                .value()
                .ok()
                .and_then(|stored| Marker::decode(&stored).ok());
            if let Some(id) = id {
                let beginning = key[..key.len() - 1].to_vec();
                let space = long::space_of_marker(key, id);
                self.beginnings.insert(space, beginning);
            }
            return None;
        }
        let mut whole = Cow::Borrowed(key);
        // Markers that lead to each other make no end of it.
        while long::lacks_its_beginning(&whole) && whole.len() <= LONGEST {
            let beginning = |space: &[u8]| self.beginnings.get(space).cloned();
            let Cow::Owned(longer) = long::whole(&whole, beginning) else {
                break;
            };
            whole = Cow::Owned(longer);
        }
        Some(whole)
    }

    /// Visits the keys of all keyspaces.
    fn entries(&mut self, visit: &mut dyn FnMut(Salvaged<'_>) -> ControlFlow<()>) {
        self.visit(|walk, index_key, current| {
            let whole = match walk.whole_key(index_key, &current) {
                Some(whole) => whole,
                None => return ControlFlow::Continue(()),
            };
            let is_headless = long::lacks_its_beginning(&whole);
            let is_too_long = whole.len() > LONGEST;
            let (place, index_key) = (index_key, &*whole);
            let (number, key) = split(index_key).unwrap_or((CATALOGUE, index_key));
            let is_name = number == CATALOGUE && current.is_ok();
            // A damaged page may have anybody's keys.
            let is_part = current.is_ok() && long::owner::<M>(place).is_none();
            if is_name || is_part || walk.names.dropped.contains(&number) {
                // Parts of values have been read with these.
                return ControlFlow::Continue(());
            }
            let name = walk.names.named.get(&number).cloned();
            let now = walk.now;
            let keyspace = name.as_deref();
            let mut flow = ControlFlow::Continue(());
            let tree = walk.tree;
            let read = read(current, |stored| {
                if is_too_long {
                    return Err(Damage::new("its key is longer than any"));
                }
                if is_headless {
                    return Err(Damage::new("the beginning of its key is lost"));
                }
                let (parts, unpacked);
                let (value, expiry) = match Found::of(stored)? {
                    Found::Here(value, expiry) => (value, expiry),
                    Found::Packed(packed) => {
                        unpacked = packed.unpack()?;
                        (&unpacked[..], packed.expiry)
                    }
                    Found::Apart(head) => {
                        let whole = parts::assembled(tree, When::Now, place, &head, 0..head.len);
                        parts = whole.map_err(|e| Damage::new(e.to_string()))?;
                        (&parts[..], head.expiry)
                    }
                };
                if expiry == 0 || expiry > now {
                    let expires_at = expires_at(expiry);
                    flow = visit(Salvaged {
                        keyspace,
                        number,
                        key,
                        found: Ok(Entry { value, expires_at }),
                    });
                }
                Ok(())
            });
            match read {
                Ok(()) => flow,
                Err(e) => visit(Salvaged {
                    keyspace,
                    number,
                    key,
                    found: Err(e.into()),
                }),
            }
        });
    }
}

/// Calls `f` with a value, if it can be read.
fn read<M: Media, R>(
    current: Result<&Current<'_, M>, &str>,
    f: impl FnOnce(&[u8]) -> Result<R, Damage>,
) -> Result<R, Damage> {
    let current = current.map_err(Damage::new)?;
    let stored = current
        .value()
        .map_err(|e: ReadError| Damage::new(e.to_string()))?;
    f(&stored)
}
