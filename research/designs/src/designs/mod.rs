//! The designs by name, for programs that let their user choose.
//!
//! Every design is a type; which one runs is decided once, here, and what is done with it
//! ([`Task`]) is compiled for exactly that type. A new design adds an entry of [`DESIGNS`] and an arm of
//! [`with_design`]; the command line, the benchmarks, the device model and the crash explorer have it
//! then. What they do with it is compiled once for each leaf size, so an entry has those that differ in
//! something worth comparing.

pub(crate) mod table;

pub use table::{Choice, DESIGNS, DesignInfo, UnknownDesign, VOLATILE, WIDE, info};

use crate::btree::{BTreeOptions, BTreeWal, GroupFlush, LcbTree};
use crate::bwtree::{BwOptions, BwTree};
use crate::bztree::{self, BzOptions, BzTree};
use crate::cddstree::{CddsOptions, CddsTree};
use crate::crabtree::{CrabOptions, CrabTree};
use crate::fastfair::{FastFair, FastFairOptions, FastFairSp};
use crate::fptree::FpTree;
use crate::index::{DurableIndex, TreeError};
use crate::lbtree::{LbOptions, LbTree};
use crate::leaftree::LeafOptions;
use crate::lstree::{LsOptions, LsTree};
use crate::nvta::NvtATree;
use crate::nvtree::{NvOptions, NvTree};
use crate::repr::{KeyRepr, MAX_KEY, MAX_VALUE, Repr, Stored, StoredKey};
use crate::skiplist::{DividedSkipList, NvmSkipList, SkipOptions};
use crate::unsorted::UnsortedTree;
use crate::wbtree::WbTree;
use bristlecone_pmem::{Media, Pool};
use std::sync::Arc;

/// A design with its options, on any medium, for any kinds of keys and values.
pub trait Design: Clone + Send + Sync + 'static {
    /// The index.
    type Index<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media>: DurableIndex<K, V, M>;

    /// As [`DurableIndex::create`].
    ///
    /// # Errors
    /// As there.
    fn create<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media>(
        &self,
        pool: &Arc<Pool<M>>,
        root: &str,
    ) -> Result<Self::Index<K, V, M>, TreeError>;

    /// As [`DurableIndex::open`].
    ///
    /// # Errors
    /// As there.
    fn open<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media>(
        &self,
        pool: &Arc<Pool<M>>,
        root: &str,
    ) -> Result<Self::Index<K, V, M>, TreeError>;

    /// Bytes that the design takes the medium to write as one: 8, or 16 for a design that declares it.
    fn failure_unit(&self) -> u8 {
        8
    }

    /// Longest byte-string key in bytes.
    fn longest_key(&self) -> usize {
        MAX_KEY
    }

    /// Longest byte-string value in bytes.
    fn longest_value(&self) -> usize {
        MAX_VALUE
    }
}

/// Makes a type a [`Design`]: `design!(Name<const B: usize>, Options, Index<B>)`, and `unit` after that if
/// the options say what its failure-atomic unit is; `; longest key, longest value` if they are its own.
macro_rules! design {
    ($(#[$doc:meta])* $name:ident $(<const $b:ident: usize>)?, $options:ty,
     $index:ident $(<$arg:ident>)? $(, $unit:ident)? $(; $key:expr, $value:expr)?) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default)]
        pub struct $name $(<const $b: usize>)?(pub $options);

        impl $(<const $b: usize>)? Design for $name $(<$b>)? {
            type Index<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> = $index<K, V, M $(, $arg)?>;

            fn create<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media>(
                &self,
                pool: &Arc<Pool<M>>,
                root: &str,
            ) -> Result<Self::Index<K, V, M>, TreeError> {
                DurableIndex::create(pool, root, &self.0)
            }

            fn open<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media>(
                &self,
                pool: &Arc<Pool<M>>,
                root: &str,
            ) -> Result<Self::Index<K, V, M>, TreeError> {
                DurableIndex::open(pool, root, &self.0)
            }

            $(fn failure_unit(&self) -> u8 {
                self.0.$unit()
            })?

            $(fn longest_key(&self) -> usize {
                $key
            }

            fn longest_value(&self) -> usize {
                $value
            })?
        }
    };
}

/// A design whose entries may be of wide keys and values: of 16 bytes.
pub trait WideDesign: Design {
    /// The index.
    type Wide<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media>: DurableIndex<K, V, M>;

    /// As [`DurableIndex::create`].
    ///
    /// # Errors
    /// As there.
    fn create_wide<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media>(
        &self,
        pool: &Arc<Pool<M>>,
        root: &str,
    ) -> Result<Self::Wide<K, V, M>, TreeError>;

    /// As [`DurableIndex::open`].
    ///
    /// # Errors
    /// As there.
    fn open_wide<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media>(
        &self,
        pool: &Arc<Pool<M>>,
        root: &str,
    ) -> Result<Self::Wide<K, V, M>, TreeError>;

    /// As [`Design::failure_unit`], with such keys and values.
    fn wide_failure_unit(&self) -> u8 {
        self.failure_unit()
    }
}

/// Makes a [`Design`] a [`WideDesign`], whose failure-atomic unit is `unit` if that is not what it is otherwise.
macro_rules! wide {
    ($name:ident $(<const $b:ident: usize>)?, $index:ident $(<$arg:ident>)? $(, $unit:literal)?) => {
        impl $(<const $b: usize>)? WideDesign for $name $(<$b>)? {
            type Wide<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media> = $index<K, V, M $(, $arg)?>;

            fn create_wide<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media>(
                &self,
                pool: &Arc<Pool<M>>,
                root: &str,
            ) -> Result<Self::Wide<K, V, M>, TreeError> {
                DurableIndex::create(pool, root, &self.0)
            }

            fn open_wide<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media>(
                &self,
                pool: &Arc<Pool<M>>,
                root: &str,
            ) -> Result<Self::Wide<K, V, M>, TreeError> {
                DurableIndex::open(pool, root, &self.0)
            }

            $(fn wide_failure_unit(&self) -> u8 {
                $unit
            })?
        }
    };
}

/// A design that holds such keys and values on such a medium: every design those of one word, [`Wide`] those of 16
/// bytes.
pub trait Holds<K, V, M>: Clone + Send + Sync + 'static
where
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    /// The index.
    type Held: DurableIndex<K, V, M>;

    /// As [`DurableIndex::create`].
    ///
    /// # Errors
    /// As there.
    fn create_at(&self, pool: &Arc<Pool<M>>, root: &str) -> Result<Self::Held, TreeError>;

    /// As [`DurableIndex::open`].
    ///
    /// # Errors
    /// As there.
    fn open_at(&self, pool: &Arc<Pool<M>>, root: &str) -> Result<Self::Held, TreeError>;

    /// As [`Design::failure_unit`].
    fn unit(&self) -> u8;

    /// As [`Design::longest_key`].
    fn most_key(&self) -> usize;

    /// As [`Design::longest_value`].
    fn most_value(&self) -> usize;
}

impl<D, K, V, M> Holds<K, V, M> for D
where
    D: Design,
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    type Held = D::Index<K, V, M>;

    fn create_at(&self, pool: &Arc<Pool<M>>, root: &str) -> Result<Self::Held, TreeError> {
        self.create(pool, root)
    }

    fn open_at(&self, pool: &Arc<Pool<M>>, root: &str) -> Result<Self::Held, TreeError> {
        self.open(pool, root)
    }

    fn unit(&self) -> u8 {
        self.failure_unit()
    }

    fn most_key(&self) -> usize {
        self.longest_key()
    }

    fn most_value(&self) -> usize {
        self.longest_value()
    }
}

/// A design with keys and values of 16 bytes.
#[derive(Clone, Debug, Default)]
pub struct Wide<D>(pub D);

impl<D: WideDesign, M: Media> Holds<u128, u128, M> for Wide<D> {
    type Held = D::Wide<u128, u128, M>;

    fn create_at(&self, pool: &Arc<Pool<M>>, root: &str) -> Result<Self::Held, TreeError> {
        self.0.create_wide(pool, root)
    }

    fn open_at(&self, pool: &Arc<Pool<M>>, root: &str) -> Result<Self::Held, TreeError> {
        self.0.open_wide(pool, root)
    }

    fn unit(&self) -> u8 {
        self.0.wide_failure_unit()
    }

    fn most_key(&self) -> usize {
        self.0.longest_key()
    }

    fn most_value(&self) -> usize {
        self.0.longest_value()
    }
}

design!(
    /// LB+-Tree with leaves of `B` x 256 bytes.
    Lb<const B: usize>, LbOptions, LbTree<B>
);

design!(
    /// CDDS-Tree.
    Cdds, CddsOptions, CddsTree
);

design!(
    /// BzTree.
    Bz, BzOptions, BzTree; bztree::MAX_KEY, bztree::MAX_VALUE
);

design!(
    /// The volatile Bw-Tree.
    Bw, BwOptions, BwTree
);

design!(
    /// FAST/FAIR.
    Fair, FastFairOptions, FastFair
);

design!(
    /// FAST/FAIR with leaves of `B` x 256 bytes under inner nodes in DRAM.
    FairSp<const B: usize>, LeafOptions, FastFairSp<B>
);

design!(
    /// Crab-tree and Crab_opt, in any leaf size.
    Crab, CrabOptions, CrabTree, failure_unit
);

design!(
    /// LCB+-Tree.
    Lcb, BTreeOptions, LcbTree
);

design!(
    /// btree-WAL.
    Wal, BTreeOptions, BTreeWal
);

design!(
    /// NVT-A.
    NvtA, BTreeOptions, NvtATree
);

wide!(Lcb, LcbTree);
wide!(Wal, BTreeWal);
wide!(NvtA, NvtATree);
wide!(Unsorted, UnsortedTree);
wide!(Fair, FastFair, 16);
wide!(FairSp<const B: usize>, FastFairSp<B>, 16);

design!(
    /// Persistent unsorted.
    Unsorted, BTreeOptions, UnsortedTree
);

design!(
    /// FPTree with leaves of `B` x 256 bytes.
    Fp<const B: usize>, LeafOptions, FpTree<B>
);

design!(
    /// wB+-Tree with leaves of `B` x 256 bytes.
    Wb<const B: usize>, LeafOptions, WbTree<B>
);

design!(
    /// The skip list with its towers in the pool.
    NvmSkip, SkipOptions, NvmSkipList
);

design!(
    /// The skip list with its towers in DRAM.
    DividedSkip, SkipOptions, DividedSkipList
);

design!(
    /// NV-Tree, in any leaf size.
    Nv, NvOptions, NvTree
);

design!(
    /// The log-structured B+-tree, in any leaf size.
    Ls, LsOptions, LsTree
);

/// What is to be done with the design that was chosen.
pub trait Task {
    /// What it gives.
    type Output;

    /// Does it.
    fn run<D: Design>(self, design: D) -> Self::Output;
}

/// What is to be done with the design that was chosen, with keys and values of 16 bytes.
pub trait WideTask {
    /// What it gives.
    type Output;

    /// Does it.
    fn run_wide<D: WideDesign>(self, design: D) -> Self::Output;
}

/// How the B+-trees in persistent memory are run.
struct Family {
    durable: BTreeOptions,
}

impl Family {
    fn new(node_bytes: u32, recovery_threads: usize) -> Self {
        Self {
            durable: BTreeOptions {
                node_bytes: Some(node_bytes),
                recovery_threads,
                ..BTreeOptions::default()
            },
        }
    }

    fn volatile(&self, group_flush: GroupFlush) -> BTreeOptions {
        BTreeOptions {
            volatile: true,
            group_flush,
            ..self.durable
        }
    }
}

/// Runs `task` with the chosen design, for keys and values of 16 bytes.
///
/// # Errors
/// [`UnknownDesign`]; the task has not run.
pub fn with_wide_design<T: WideTask>(
    choice: &Choice<'_>,
    task: T,
) -> Result<T::Output, UnknownDesign> {
    let (info, bytes) = choice.resolve()?;
    let recovery_threads = choice.recovery_threads;
    let leaf = LeafOptions { recovery_threads };
    let family = Family::new(bytes, recovery_threads);
    Ok(match (info.name, bytes) {
        ("fastfair", node_bytes) => task.run_wide(Fair(FastFairOptions {
            node_bytes,
            recovery_threads,
            ..FastFairOptions::default()
        })),
        ("fastfair-sp", 256) => task.run_wide(FairSp::<1>(leaf)),
        ("fastfair-sp", 512) => task.run_wide(FairSp::<2>(leaf)),
        ("fastfair-sp", 1024) => task.run_wide(FairSp::<4>(leaf)),
        ("lcbtree", _) => task.run_wide(Lcb(family.durable)),
        ("btree-wal", _) => task.run_wide(Wal(family.durable)),
        ("unsorted", _) => task.run_wide(Unsorted(family.durable)),
        ("nvta", _) => task.run_wide(NvtA(family.durable)),
        ("btree", _) => task.run_wide(Lcb(family.volatile(GroupFlush::Off))),
        ("btree-gf", _) => task.run_wide(Lcb(family.volatile(GroupFlush::On))),
        ("btree-gf-load", _) => task.run_wide(Lcb(family.volatile(GroupFlush::UNDER_LOAD))),
        ("unsorted-leaf", _) => task.run_wide(Unsorted(family.volatile(GroupFlush::Off))),
        (design, _) => return Err(UnknownDesign::Narrow { design }),
    })
}

/// Runs `task` with the chosen design.
///
/// # Errors
/// [`UnknownDesign`]; the task has not run.
pub fn with_design<T: Task>(choice: &Choice<'_>, task: T) -> Result<T::Output, UnknownDesign> {
    let (info, bytes) = choice.resolve()?;
    let recovery_threads = choice.recovery_threads;
    let lb = LbOptions {
        recovery_threads,
        ..LbOptions::default()
    };
    let leaf = LeafOptions { recovery_threads };
    let family = Family::new(bytes, recovery_threads);
    let ls = LsOptions {
        leaf_bytes: bytes,
        recovery_threads,
        ..LsOptions::default()
    };
    let nv = NvOptions {
        leaf_bytes: bytes,
        recovery_threads,
        ..NvOptions::default()
    };
    let crab = |options| CrabOptions {
        leaf_bytes: bytes,
        recovery_threads,
        ..options
    };
    Ok(match (info.name, bytes) {
        ("lbtree", 256) => task.run(Lb::<1>(lb)),
        ("lbtree", 512) => task.run(Lb::<2>(lb)),
        ("lbtree", 1024) => task.run(Lb::<4>(lb)),
        ("bztree", node_bytes) => task.run(Bz(BzOptions {
            node_bytes,
            ..BzOptions::default()
        })),
        ("cddstree", node_bytes) => task.run(Cdds(CddsOptions {
            node_bytes,
            recovery_threads,
        })),
        ("fastfair", node_bytes) => task.run(Fair(FastFairOptions {
            node_bytes,
            recovery_threads,
            ..FastFairOptions::default()
        })),
        ("fastfair-sp", 256) => task.run(FairSp::<1>(leaf)),
        ("fastfair-sp", 512) => task.run(FairSp::<2>(leaf)),
        ("fastfair-sp", 1024) => task.run(FairSp::<4>(leaf)),
        ("crabtree", _) => task.run(Crab(crab(CrabOptions::PLAIN))),
        ("crabtree-opt", _) => task.run(Crab(crab(CrabOptions::OPTIMIZED))),
        ("skiplist-nvm", 32) => task.run(NvmSkip(SkipOptions::default())),
        ("skiplist-divided", 32) => task.run(DividedSkip(SkipOptions::default())),
        ("fptree", 256) => task.run(Fp::<1>(leaf)),
        ("fptree", 512) => task.run(Fp::<2>(leaf)),
        ("fptree", 1024) => task.run(Fp::<4>(leaf)),
        ("wbtree", 256) => task.run(Wb::<1>(leaf)),
        ("wbtree", 512) => task.run(Wb::<2>(leaf)),
        ("wbtree", 1024) => task.run(Wb::<4>(leaf)),
        ("lcbtree", _) => task.run(Lcb(family.durable)),
        ("btree-wal", _) => task.run(Wal(family.durable)),
        ("unsorted", _) => task.run(Unsorted(family.durable)),
        ("nvta", _) => task.run(NvtA(family.durable)),
        ("btree", _) => task.run(Lcb(family.volatile(GroupFlush::Off))),
        ("btree-gf", _) => task.run(Lcb(family.volatile(GroupFlush::On))),
        ("btree-gf-load", _) => task.run(Lcb(family.volatile(GroupFlush::UNDER_LOAD))),
        ("unsorted-leaf", _) => task.run(Unsorted(family.volatile(GroupFlush::Off))),
        ("bwtree", node_bytes) => task.run(Bw(BwOptions {
            node_bytes,
            ..BwOptions::default()
        })),
        ("nvtree", _) => task.run(Nv(nv)),
        ("lstree", _) => task.run(Ls(ls)),
        // An entry of DESIGNS without its arm; the tests run them all.
        _ => return Err(UnknownDesign::Name(info.name.to_owned())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::OrderedIndex;
    use bristlecone_pmem::PoolOptions;
    use bristlecone_pmem::media::Dram;
    use std::path::Path;

    struct Try;

    impl Task for Try {
        type Output = bool;

        fn run<D: Design>(self, design: D) -> bool {
            let pool = Pool::<Dram>::create(Path::new("none"), &PoolOptions::default()).unwrap();
            let index = design.create::<u64, u64, Dram>(&pool, "index").unwrap();
            index.insert(&1, &2).unwrap();
            index.get(&1) == Some(2) && index.get(&2).is_none()
        }
    }

    #[test]
    fn every_design_runs_in_every_leaf_size() {
        for design in DESIGNS.iter().chain(VOLATILE) {
            assert!(design.node_bytes.is_sorted_by(|a, b| a < b));
            assert!(design.node_bytes.contains(&design.default_node_bytes));
            for bytes in design.explored() {
                assert!(design.node_bytes.contains(bytes), "{design:?}");
            }
            for bytes in design.node_bytes {
                let choice = Choice {
                    node_bytes: Some(*bytes),
                    ..Choice::of(design.name)
                };
                assert_eq!(with_design(&choice, Try), Ok(true), "{choice:?}");
            }
        }
    }

    impl WideTask for Try {
        type Output = bool;

        fn run_wide<D: WideDesign>(self, design: D) -> bool {
            let pool = Pool::<Dram>::create(Path::new("none"), &PoolOptions::default()).unwrap();
            let index = design.create_wide::<u128, u128, Dram>(&pool, "index");
            let (index, key) = (index.unwrap(), 1 << 100);
            index.insert(&key, &u128::MAX).unwrap();
            index.get(&key) == Some(u128::MAX) && index.get(&0).is_none()
        }
    }

    #[test]
    fn wide_designs_are_those_that_are_listed() {
        for design in DESIGNS.iter().chain(VOLATILE) {
            let tried = with_wide_design(&Choice::of(design.name), Try);
            if WIDE.contains(&design.name) {
                assert_eq!(tried, Ok(true), "{}", design.name);
            } else {
                let error = tried.unwrap_err().to_string();
                assert!(error.contains("btree-wal"), "{error}");
            }
        }
    }

    #[test]
    fn what_is_not_there_is_named() {
        let error = with_design(&Choice::of("btree-2000"), Try).unwrap_err();
        assert!(error.to_string().contains("\"btree-2000\""), "{error}");
        let choice = Choice {
            node_bytes: Some(300),
            ..Choice::of("lbtree")
        };
        let error = with_design(&choice, Try).unwrap_err().to_string();
        assert!(
            error.contains("300") && error.contains("256, 512"),
            "{error}"
        );
    }
}
