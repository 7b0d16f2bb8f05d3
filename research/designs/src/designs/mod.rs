//! The designs. Each is a type that makes its index on any medium, for any kinds of keys and
//! values.
//!
//! Programs whose users choose take a design by name or [with options of its own](AnyDesign),
//! mostly as an [engine](crate::engines). A design is then compiled in this crate, once for each
//! medium and kind of keys and values. Code that must be compiled for exactly the chosen design,
//! such as a timed loop, is a [`Task`]. A new design adds an entry of [`DESIGNS`], a variant of
//! [`AnyDesign`] and an arm of [`AnyDesign::of`].

mod any;
pub(crate) mod table;

pub(crate) use any::WideTask;
pub use any::{AnyDesign, Task, with_design};
pub use table::{Choice, DESIGNS, DesignInfo, UnknownDesign, VOLATILE, WIDE, info};

use crate::btree::{BTreeOptions, BTreeWal, LcbTree};
use crate::bwtree::{BwOptions, BwTree};
use crate::bztree::{self, BzOptions, BzTree};
use crate::cddstree::{CddsOptions, CddsTree};
use crate::central::CentralOptions;
use crate::clustered::{self, ClusteredOptions, ClusteredTree};
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

    /// Returns the number of bytes that the design expects the medium to write as one: 8, or 16 for
    /// a design that declares it.
    fn failure_unit(&self) -> u8 {
        8
    }

    /// Returns the length of the longest byte-string key.
    fn longest_key(&self) -> usize {
        MAX_KEY
    }

    /// Returns the length of the longest byte-string value.
    fn longest_value(&self) -> usize {
        MAX_VALUE
    }
}

/// A design that [`DESIGNS`] does not have, with what reports say of it. The laboratory measures
/// and models it, and the explorer explores it, as one of these.
#[derive(Clone, Copy, Debug)]
pub struct OwnDesign<D> {
    /// Its name in reports.
    pub name: &'static str,
    /// Bytes in a leaf.
    pub node_bytes: u32,
    /// The design with its options.
    pub design: D,
}

/// Makes a type a [`Design`](crate::Design):
/// `design!(pub Name<const B: usize>, Options, Index<B>)`, where `Index<K, V, M>` is a
/// [`DurableIndex`](crate::DurableIndex) with these options. If the options state the
/// failure-atomic unit, `unit` follows, and `; longest key, longest value` if the design has limits
/// of its own.
#[macro_export]
macro_rules! design {
    ($(#[$doc:meta])* $vis:vis $name:ident $(<const $b:ident: usize>)?, $options:ty,
     $index:ident $(<$arg:ident>)? $(, $unit:ident)? $(; $key:expr, $value:expr)?) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default)]
        $vis struct $name $(<const $b: usize>)?(pub $options);

        impl $(<const $b: usize>)? $crate::Design for $name $(<$b>)? {
            type Index<
                K: $crate::KeyRepr + ?Sized,
                V: $crate::Repr + ?Sized,
                M: $crate::pmem::Media,
            > = $index<K, V, M $(, $arg)?>;

            fn create<
                K: $crate::KeyRepr + ?Sized,
                V: $crate::Repr + ?Sized,
                M: $crate::pmem::Media,
            >(
                &self,
                pool: &::std::sync::Arc<$crate::pmem::Pool<M>>,
                root: &str,
            ) -> Result<Self::Index<K, V, M>, $crate::TreeError> {
                $crate::DurableIndex::create(pool, root, &self.0)
            }

            fn open<
                K: $crate::KeyRepr + ?Sized,
                V: $crate::Repr + ?Sized,
                M: $crate::pmem::Media,
            >(
                &self,
                pool: &::std::sync::Arc<$crate::pmem::Pool<M>>,
                root: &str,
            ) -> Result<Self::Index<K, V, M>, $crate::TreeError> {
                $crate::DurableIndex::open(pool, root, &self.0)
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

/// A design that can also hold keys and values of 16 bytes.
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

    /// As [`Design::failure_unit`], for such keys and values.
    fn wide_failure_unit(&self) -> u8 {
        self.failure_unit()
    }
}

/// Makes a [`Design`] a [`WideDesign`], whose failure-atomic unit is `unit` if that differs from
/// the design's usual one.
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

/// A design that holds keys `K` and values `V` on medium `M`: every design holds those of one word,
/// [`Wide`] those of 16 bytes.
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
    fn max_key(&self) -> usize;

    /// As [`Design::longest_value`].
    fn max_value(&self) -> usize;
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

    fn max_key(&self) -> usize {
        self.longest_key()
    }

    fn max_value(&self) -> usize {
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

    fn max_key(&self) -> usize {
        self.0.longest_key()
    }

    fn max_value(&self) -> usize {
        self.0.longest_value()
    }
}

design!(
    /// LB+-Tree with leaves of `B` x 256 bytes.
    pub Lb<const B: usize>, LbOptions, LbTree<B>
);

design!(
    /// The clustered tree.
    pub Clustered, ClusteredOptions, ClusteredTree; clustered::MAX_KEY, clustered::MAX_VALUE
);

design!(
    /// CDDS-Tree.
    pub Cdds, CddsOptions, CddsTree
);

design!(
    /// BzTree.
    pub Bz, BzOptions, BzTree; bztree::MAX_KEY, bztree::MAX_VALUE
);

design!(
    /// The volatile Bw-Tree.
    pub Bw, BwOptions, BwTree
);

design!(
    /// FAST/FAIR.
    pub Fair, FastFairOptions, FastFair
);

design!(
    /// FAST/FAIR with leaves of `B` x 256 bytes under inner nodes in DRAM.
    pub FairSp<const B: usize>, LeafOptions, FastFairSp<B>
);

design!(
    /// Crab-tree and Crab_opt, in any leaf size.
    pub Crab, CrabOptions, CrabTree, failure_unit
);

design!(
    /// LCB+-Tree.
    pub Lcb, BTreeOptions, LcbTree
);

design!(
    /// btree-WAL.
    pub Wal, BTreeOptions, BTreeWal
);

design!(
    /// NVT-A.
    pub NvtA, BTreeOptions, NvtATree
);

wide!(Lcb, LcbTree);
wide!(Wal, BTreeWal);
wide!(NvtA, NvtATree);
wide!(Unsorted, UnsortedTree);
wide!(Fair, FastFair, 16);
wide!(FairSp<const B: usize>, FastFairSp<B>, 16);

design!(
    /// Persistent unsorted.
    pub Unsorted, BTreeOptions, UnsortedTree
);

design!(
    /// FPTree with leaves of `B` x 256 bytes.
    pub Fp<const B: usize>, CentralOptions, FpTree<B>
);

design!(
    /// wB+-Tree with leaves of `B` x 256 bytes.
    pub Wb<const B: usize>, CentralOptions, WbTree<B>
);

design!(
    /// The skip list with its towers in the pool.
    pub NvmSkip, SkipOptions, NvmSkipList
);

design!(
    /// The skip list with its towers in DRAM.
    pub DividedSkip, SkipOptions, DividedSkipList
);

design!(
    /// NV-Tree, in any leaf size.
    pub Nv, NvOptions, NvTree
);

design!(
    /// The log-structured B+-tree, in any leaf size.
    pub Ls, LsOptions, LsTree
);
