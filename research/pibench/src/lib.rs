//! Every design of the papers behind the interface of [PiBench], which measures indexes in
//! persistent memory that it loads as shared libraries.
//!
//! ```text
//! PiBench --create_tree--> cpp/tree.cc --C interface (ffi)--> Tree --> engine of a design, in a pool
//! ```
//!
//! Keys and values of 8 bytes each are numbers, as in PiBench's own wrappers; others are byte
//! strings in the order of their bytes. A change is durable when its call returns, at the cost that
//! the design's own documentation states.
//!
//! [PiBench]: https://github.com/sfu-dis/pibench

pub mod ffi;

use bristlecone_designs::designs::{Choice, DESIGNS, UnknownDesign};
use bristlecone_designs::engines::{Engine, Maker, maker};
use bristlecone_index::{Fill, InsertError, RemoveError, TreeError, UpdateError};
use bristlecone_pmem::media::{Auto, MediaOptions};
use bristlecone_pmem::{CommitError, OpenError, Pool, PoolOptions};
use std::fmt;
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::Arc;

/// The name of the index in its pool.
const ROOT: &str = "pibench";
/// Bytes of a number.
const NUMBER: usize = 8;
/// Least number of bytes that a pool may grow to.
const LEAST: u64 = 64 << 20;

/// What PiBench asks for.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Name of the design, with its leaf size if that is not the default: `lbtree`, `lbtree-512`.
    pub design: &'a str,
    /// The pool's file. One that is there is opened, and must have an index of this design.
    pub path: &'a Path,
    /// Bytes that the pool may grow to; 0 for as many as there are.
    pub pool_bytes: u64,
    /// Bytes of each key.
    pub key_bytes: usize,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// Threads that recover the index of a pool that was not closed.
    pub threads: usize,
}

/// The reason why something failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Fault {
    /// There is no such design, or none with such leaves or keys.
    Design(UnknownDesign),
    /// A size is 0, or the design has no keys or values as long.
    Size {
        /// `key` or `value`.
        what: &'static str,
        /// The size in bytes.
        bytes: usize,
        /// The longest in bytes.
        most: usize,
    },
    /// The pool can be neither opened nor made.
    Pool(OpenError),
    /// The index can be neither opened nor made.
    Index(TreeError),
    /// A record has another length than the pool's records are said to have.
    Length {
        /// Bytes that it has.
        found: usize,
        /// Bytes that it should have.
        expected: usize,
    },
    /// An insertion failed.
    Insert(InsertError),
    /// An update failed.
    Update(UpdateError),
    /// A removal failed.
    Remove(RemoveError),
    /// The index may not be durable.
    Commit(CommitError),
    /// Bulk loading found a key twice.
    Twice,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Design(e) => {
                let names: Vec<_> = DESIGNS.iter().map(|design| design.name).collect();
                write!(f, "{e}; BRISTLECONE_DESIGN is one of {}", names.join(", "))
            }
            Self::Size { what, bytes, most } => {
                write!(
                    f,
                    "a {what} of {bytes} bytes; this design has 1 to {most} (--{what}_size)"
                )
            }
            Self::Pool(e) => write!(f, "{e}"),
            Self::Index(e) => write!(f, "{e}"),
            Self::Length { found, expected } => {
                write!(
                    f,
                    "{found} bytes where PiBench was told of {expected}; give the sizes that the pool was made with"
                )
            }
            Self::Insert(e) => write!(f, "insert: {e}"),
            Self::Update(e) => write!(f, "update: {e}"),
            Self::Remove(e) => write!(f, "remove: {e}"),
            Self::Commit(e) => write!(f, "closing: {e}"),
            Self::Twice => write!(f, "bulk loading: a key comes twice"),
        }
    }
}

impl std::error::Error for Fault {}

/// An index, by the kind of its keys and values.
enum Held {
    Numbers(Box<dyn Engine<u64, u64>>),
    Bytes(Box<dyn Engine<[u8], [u8]>>),
}

/// An index in a pool, as PiBench sees it.
pub struct Tree {
    held: Held,
    key_bytes: usize,
    value_bytes: usize,
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tree")
            .field("key_bytes", &self.key_bytes)
            .field("value_bytes", &self.value_bytes)
            .finish_non_exhaustive()
    }
}

/// Returns a design's name and leaf size: `lbtree-512` is `lbtree` with 512.
fn choice(design: &str, threads: usize) -> Choice<'_> {
    let sized = design.rsplit_once('-');
    let sized = sized.and_then(|(name, bytes)| Some((name, bytes.parse().ok()?)));
    let (name, node_bytes) = match sized {
        Some((name, bytes)) => (name, Some(bytes)),
        None => (design, None),
    };
    Choice {
        name,
        node_bytes,
        recovery_threads: threads.max(1),
    }
}

/// Returns the number that PiBench means: little-endian, as on all processors that this runs on.
fn number(bytes: &[u8]) -> Result<u64, Fault> {
    let number = bytes.try_into().map_err(|_| Fault::Length {
        found: bytes.len(),
        expected: NUMBER,
    })?;
    Ok(u64::from_le_bytes(number))
}

/// Opens or makes the index of a pool that was just opened or made.
fn engine<K, V>(
    maker: &dyn Maker<K, V, Auto>,
    pool: &Arc<Pool<Auto>>,
) -> Result<Box<dyn Engine<K, V>>, Fault>
where
    K: ?Sized,
    V: ToOwned + ?Sized,
{
    let there = pool.roots().iter().any(|root| root.name == ROOT);
    let made = if there {
        maker.open(pool, ROOT)
    } else {
        maker.create(pool, ROOT)
    };
    made.map_err(Fault::Index)
}

fn fits(what: &'static str, bytes: usize, most: usize) -> Result<(), Fault> {
    if (1..=most).contains(&bytes) {
        Ok(())
    } else {
        Err(Fault::Size { what, bytes, most })
    }
}

impl Tree {
    /// Opens the index in the pool, or makes both.
    ///
    /// # Errors
    /// [`Fault`]; a pool that was there is as before, and none is left that was not.
    pub fn open(options: &Options<'_>) -> Result<Self, Fault> {
        let choice = choice(options.design, options.threads);
        let numbers = options.key_bytes == NUMBER && options.value_bytes == NUMBER;
        let reserve = match options.pool_bytes {
            0 => MediaOptions::default().reserve,
            bytes => bytes.max(LEAST),
        };
        let media = MediaOptions {
            reserve,
            ..MediaOptions::default()
        };
        let there = options.path.exists();
        let pool = || {
            let options_of_pool = PoolOptions { media };
            let pool = if there {
                Pool::open(options.path, &options_of_pool)
            } else {
                Pool::create(options.path, &options_of_pool)
            };
            pool.map_err(Fault::Pool)
        };
        let held = if numbers {
            let maker = maker::<u64, u64, Auto>(&choice).map_err(Fault::Design)?;
            engine(&*maker, &pool()?).map(Held::Numbers)
        } else {
            let maker = maker::<[u8], [u8], Auto>(&choice).map_err(Fault::Design)?;
            fits("key", options.key_bytes, maker.longest_key())?;
            fits("value", options.value_bytes, maker.longest_value())?;
            engine(&*maker, &pool()?).map(Held::Bytes)
        };
        if held.is_err() && !there {
            // The error says why there is none.
            let _ = std::fs::remove_file(options.path);
        }
        Ok(Self {
            held: held?,
            key_bytes: options.key_bytes,
            value_bytes: options.value_bytes,
        })
    }

    /// Copies the value of a key to `out`. Returns false if there is none.
    ///
    /// # Errors
    /// [`Fault::Length`]
    pub fn find(&self, key: &[u8], out: &mut [u8]) -> Result<bool, Fault> {
        match &self.held {
            Held::Numbers(index) => match index.get(&number(key)?) {
                Some(value) => copy(out, &value.to_le_bytes()),
                None => Ok(false),
            },
            Held::Bytes(index) => match index.get(key) {
                Some(value) => copy(out, &value),
                None => Ok(false),
            },
        }
    }

    /// Inserts an entry. Returns false if its key is there.
    ///
    /// # Errors
    /// [`Fault::Insert`], [`Fault::Length`]
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, Fault> {
        let inserted = match &self.held {
            Held::Numbers(index) => index.insert(&number(key)?, &number(value)?),
            Held::Bytes(index) => index.insert(key, value),
        };
        match inserted {
            Ok(()) => Ok(true),
            Err(InsertError::KeyExists) => Ok(false),
            Err(e) => Err(Fault::Insert(e)),
        }
    }

    /// Replaces the value of a key. Returns false if there is none.
    ///
    /// # Errors
    /// [`Fault::Update`], [`Fault::Length`]
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, Fault> {
        let updated = match &self.held {
            Held::Numbers(index) => index.update(&number(key)?, &number(value)?),
            Held::Bytes(index) => index.update(key, value),
        };
        match updated {
            Ok(()) => Ok(true),
            Err(UpdateError::NotFound) => Ok(false),
            Err(e) => Err(Fault::Update(e)),
        }
    }

    /// Removes an entry. Returns false if there is none.
    ///
    /// # Errors
    /// [`Fault::Remove`], [`Fault::Length`]
    pub fn remove(&self, key: &[u8]) -> Result<bool, Fault> {
        let removed = match &self.held {
            Held::Numbers(index) => index.remove(&number(key)?),
            Held::Bytes(index) => index.remove(key),
        };
        removed.map_err(Fault::Remove)
    }

    /// Copies up to `most` entries from `key` on, ascending, to `out`, keys and values one after
    /// the other. Returns their number.
    ///
    /// # Errors
    /// [`Fault::Length`]: an entry is of another length, or `out` is shorter than the entries.
    pub fn scan(&self, key: &[u8], most: usize, out: &mut [u8]) -> Result<usize, Fault> {
        let record = self.key_bytes + self.value_bytes;
        let mut places = out.chunks_exact_mut(record).take(most);
        let mut scanned = 0;
        let mut wrong = None;
        let mut entry = |key: &[u8], value: &[u8]| {
            let Some(place) = places.next() else {
                return ControlFlow::Break(());
            };
            let (to_key, to_value) = place.split_at_mut(self.key_bytes);
            for copied in [copy(to_key, key), copy(to_value, value)] {
                if let Err(e) = copied {
                    wrong = Some(e);
                    return ControlFlow::Break(());
                }
            }
            scanned += 1;
            // The visitor need not be called once more to say so.
            if scanned == most {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        if most > 0 {
            use bristlecone_index::contract::Direction::Up;
            match &self.held {
                Held::Numbers(index) => {
                    let from = number(key)?;
                    let range = (Bound::Included(&from), Bound::Unbounded);
                    index.scan(range, Up, None, &mut |key, value| {
                        entry(&key.to_le_bytes(), &value.to_le_bytes())
                    });
                }
                Held::Bytes(index) => {
                    let range = (Bound::Included(key), Bound::Unbounded);
                    index.scan(range, Up, None, &mut entry);
                }
            }
        }
        wrong.map_or(Ok(scanned), Err)
    }

    /// Fills an empty index from entries in any order, keys and values one after the other.
    ///
    /// # Errors
    /// [`Fault::Twice`]; [`Fault::Insert`] also if the index is not empty.
    pub fn load(&mut self, records: &[u8]) -> Result<(), Fault> {
        let record = self.key_bytes + self.value_bytes;
        if !records.len().is_multiple_of(record) {
            return Err(Fault::Length {
                found: records.len() % record,
                expected: record,
            });
        }
        let entries = records.chunks_exact(record);
        let entries = entries.map(|entry| entry.split_at(self.key_bytes));
        let loaded = match &mut self.held {
            Held::Numbers(index) => {
                let entries = entries.map(|(key, value)| Ok((number(key)?, number(value)?)));
                let mut sorted = entries.collect::<Result<Vec<_>, Fault>>()?;
                sort(&mut sorted)?;
                index.load(&mut sorted.into_iter(), Fill::USUAL)
            }
            Held::Bytes(index) => {
                let entries = entries.map(|(key, value)| (key.to_vec(), value.to_vec()));
                let mut sorted: Vec<_> = entries.collect();
                sort(&mut sorted)?;
                index.load(&mut sorted.into_iter(), Fill::USUAL)
            }
        };
        loaded.map(|_| ()).map_err(Fault::Insert)
    }

    /// Closes the index and its pool.
    ///
    /// # Errors
    /// [`Fault::Commit`]: the next opening recovers it.
    pub fn close(self) -> Result<(), Fault> {
        let closed = match self.held {
            Held::Numbers(index) => index.close(),
            Held::Bytes(index) => index.close(),
        };
        closed.map_err(Fault::Commit)
    }
}

fn copy(out: &mut [u8], value: &[u8]) -> Result<bool, Fault> {
    if out.len() != value.len() {
        return Err(Fault::Length {
            found: value.len(),
            expected: out.len(),
        });
    }
    out.copy_from_slice(value);
    Ok(true)
}

fn sort<K: Ord, V>(entries: &mut [(K, V)]) -> Result<(), Fault> {
    entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    if entries.is_sorted_by(|(a, _), (b, _)| a < b) {
        Ok(())
    } else {
        Err(Fault::Twice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(path: &Path) -> Options<'_> {
        Options {
            design: "lbtree",
            path,
            pool_bytes: 0,
            key_bytes: 8,
            value_bytes: 8,
            threads: 2,
        }
    }

    /// Works on a tree, closes it, and looks again.
    fn used(options: &Options<'_>) {
        let key = |n: u8| [&[0; 7][..], &[n], &vec![0; options.key_bytes - 8]].concat();
        // Numbers are in the machine's order of bytes, so the last byte decides in both kinds only
        // where it is the highest.
        let value = |n: u8| vec![n; options.value_bytes];
        let tree = Tree::open(options).unwrap();
        for n in (1..=200).rev() {
            assert!(tree.insert(&key(n), &value(n)).unwrap(), "{n}");
        }
        assert!(!tree.insert(&key(7), &value(9)).unwrap());
        assert!(tree.update(&key(7), &value(8)).unwrap());
        assert!(!tree.update(&key(201), &value(8)).unwrap());
        assert!(tree.remove(&key(9)).unwrap());
        assert!(!tree.remove(&key(9)).unwrap());
        tree.close().unwrap();
        let tree = Tree::open(options).unwrap();
        let mut found = value(0);
        assert!(tree.find(&key(7), &mut found).unwrap());
        assert_eq!(found, value(8));
        assert!(!tree.find(&key(9), &mut found).unwrap());
        let record = options.key_bytes + options.value_bytes;
        let mut out = vec![0; 5 * record];
        assert_eq!(tree.scan(&key(8), 3, &mut out).unwrap(), 3);
        let expected = [8, 10, 11].map(|n| [key(n), value(n)].concat()).concat();
        assert_eq!(out[..3 * record], expected);
        assert_eq!(out[3 * record..], vec![0; 2 * record], "no more than asked");
        assert_eq!(tree.scan(&key(199), 5, &mut out).unwrap(), 2);
        assert_eq!(tree.scan(&key(1), 0, &mut out).unwrap(), 0);
    }

    #[test]
    fn numbers_and_byte_strings_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        for (name, design, key_bytes, value_bytes) in [
            ("a", "lbtree-512", 8, 8),
            ("b", "fptree", 8, 8),
            ("c", "bztree", 16, 100),
            ("d", "clustered", 8, 100),
            ("e", "fastfair-sp-256", 32, 8),
        ] {
            used(&Options {
                design,
                key_bytes,
                value_bytes,
                ..options(&dir.path().join(name))
            });
        }
    }

    #[test]
    fn an_index_is_loaded_in_any_order_but_each_key_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        let mut tree = Tree::open(&options(&path)).unwrap();
        let entry = |n: u64| [n.to_le_bytes(), (n + 1).to_le_bytes()].concat();
        let twice = [entry(5), entry(3), entry(5)].concat();
        assert!(matches!(tree.load(&twice), Err(Fault::Twice)));
        assert!(matches!(
            tree.load(&twice[..17]),
            Err(Fault::Length {
                found: 1,
                expected: 16
            })
        ));
        tree.load(&[entry(5), entry(3), entry(900)].concat())
            .unwrap();
        let mut out = [0; 64];
        let from = 0_u64.to_le_bytes();
        assert_eq!(tree.scan(&from, 4, &mut out).unwrap(), 3);
        assert_eq!(out[..48], [entry(3), entry(5), entry(900)].concat());
    }

    #[test]
    fn what_cannot_be_is_named_and_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        let message = |options: Options<'_>| Tree::open(&options).unwrap_err().to_string();
        let of = options(&path);
        let unknown = message(Options {
            design: "tree",
            ..of
        });
        assert!(
            unknown.contains("\"tree\"") && unknown.contains("lbtree, "),
            "{unknown}"
        );
        let leaves = message(Options {
            design: "lbtree-300",
            ..of
        });
        assert!(leaves.contains("300"), "{leaves}");
        let long = message(Options {
            key_bytes: 1 << 20,
            ..of
        });
        assert!(
            long.contains("1048576") && long.contains("--key_size"),
            "{long}"
        );
        let none = message(Options {
            value_bytes: 0,
            ..of
        });
        assert!(none.contains("a value of 0 bytes"), "{none}");
        assert!(!path.exists());
        let nowhere = dir.path().join("none/pool");
        let nowhere = message(options(&nowhere));
        assert!(nowhere.contains("none/pool"), "{nowhere}");
        // Another design's index is refused, and stays.
        let tree = Tree::open(&of).unwrap();
        tree.insert(&1_u64.to_le_bytes(), &2_u64.to_le_bytes())
            .unwrap();
        tree.close().unwrap();
        message(Options {
            design: "fptree",
            ..of
        });
        let tree = Tree::open(&of).unwrap();
        let mut found = [0; 8];
        assert!(tree.find(&1_u64.to_le_bytes(), &mut found).unwrap());
        assert_eq!(found, 2_u64.to_le_bytes());
        let short = tree.find(&[1; 4], &mut found).unwrap_err().to_string();
        assert!(
            short.contains("4 bytes where PiBench was told of 8"),
            "{short}"
        );
    }
}
