//! Damaged pool files: every design refuses them with an error or serves what is undamaged, and
//! touches nothing outside the pool. This is a program of its own, so that it can be run under a
//! sanitizer by itself.

#[path = "all/common/mod.rs"]
mod common;

use bristlecone_designs::cddstree::CddsOptions;
use bristlecone_designs::crabtree::Strategy;
use bristlecone_designs::designs::{
    Bz, Cdds, Crab, Fair, Fp, Lb, Lcb, Nv, NvtA, Unsorted, Wal, Wb,
};
#[cfg(feature = "thorough")]
use bristlecone_designs::designs::{DividedSkip, FairSp, Ls};
use bristlecone_designs::{BTreeOptions, BzOptions, CrabOptions, FastFairOptions};
#[cfg(feature = "thorough")]
use common::WideOf;
use common::{Chosen, File, Of, scenario_suite};

/// A design with the smallest nodes, so that there are many.
struct Small<D>(std::marker::PhantomData<D>);

impl Chosen for Small<Cdds> {
    type Design = Cdds;

    fn design() -> Cdds {
        Cdds(CddsOptions {
            node_bytes: 256,
            ..CddsOptions::default()
        })
    }
}

impl Chosen for Small<Fair> {
    type Design = Fair;

    fn design() -> Fair {
        Fair(FastFairOptions {
            node_bytes: 256,
            ..FastFairOptions::default()
        })
    }
}

fn small_nodes() -> BTreeOptions {
    BTreeOptions {
        node_bytes: Some(256),
        ..BTreeOptions::default()
    }
}

impl Chosen for Small<Lcb> {
    type Design = Lcb;

    fn design() -> Lcb {
        Lcb(small_nodes())
    }
}

impl Chosen for Small<Wal> {
    type Design = Wal;

    fn design() -> Wal {
        Wal(small_nodes())
    }
}

impl Chosen for Small<Unsorted> {
    type Design = Unsorted;

    fn design() -> Unsorted {
        Unsorted(small_nodes())
    }
}

impl Chosen for Small<NvtA> {
    type Design = NvtA;

    fn design() -> NvtA {
        NvtA(small_nodes())
    }
}

impl Chosen for Small<Crab> {
    type Design = Crab;

    fn design() -> Crab {
        // Copying follows the links that may be damaged; with the measured costs it would not be
        // chosen here.
        Crab(CrabOptions {
            leaf_bytes: 256,
            strategy: Strategy::CopyOnWrite,
            ..CrabOptions::PLAIN
        })
    }
}

impl Chosen for Small<Bz> {
    type Design = Bz;

    // Strings are in the nodes, as numbers are.
    const SUMS: bool = false;

    fn design() -> Bz {
        Bz(BzOptions {
            node_bytes: 256,
            ..BzOptions::default()
        })
    }
}

type Numbers<D> = Of<D, u64, u64, File>;

#[cfg(feature = "thorough")]
scenario_suite!(lbtree, Numbers<Lb<1>>: [hostile]);
scenario_suite!(lbtree_strings, Of<Lb<2>, [u8], [u8], File>: [hostile]);
scenario_suite!(fptree, Numbers<Fp<1>>: [hostile]);
scenario_suite!(wbtree, Numbers<Wb<1>>: [hostile]);
scenario_suite!(nvtree, Numbers<Nv>: [hostile]);
#[cfg(feature = "thorough")]
scenario_suite!(lstree_strings, Of<Ls, [u8], [u8], File>: [hostile]);
#[cfg(feature = "thorough")]
scenario_suite!(nvta, Numbers<Small<NvtA>>: [hostile]);
#[cfg(feature = "thorough")]
scenario_suite!(cddstree, Numbers<Small<Cdds>>: [hostile]);
#[cfg(feature = "thorough")]
scenario_suite!(fastfair, Numbers<Small<Fair>>: [hostile]);
scenario_suite!(fastfair_strings, Of<Small<Fair>, [u8], [u8], File>: [hostile]);
#[cfg(feature = "thorough")]
scenario_suite!(fastfair_wide, Of<WideOf<Small<Fair>>, u128, u128, File>: [hostile]);
#[cfg(feature = "thorough")]
scenario_suite!(fastfair_sp, Numbers<FairSp<1>>: [hostile]);
scenario_suite!(crabtree, Numbers<Small<Crab>>: [hostile]);
#[cfg(feature = "thorough")]
scenario_suite!(bztree, Numbers<Small<Bz>>: [hostile]);
scenario_suite!(bztree_strings, Of<Small<Bz>, [u8], [u8], File>: [hostile]);
#[cfg(feature = "thorough")]
scenario_suite!(lcbtree, Numbers<Small<Lcb>>: [hostile]);
#[cfg(feature = "thorough")]
scenario_suite!(btree_wal, Numbers<Small<Wal>>: [hostile]);
#[cfg(feature = "thorough")]
scenario_suite!(btree_wal_wide, Of<WideOf<Small<Wal>>, u128, u128, File>: [hostile]);
#[cfg(feature = "thorough")]
scenario_suite!(unsorted, Numbers<Small<Unsorted>>: [hostile]);
#[cfg(feature = "thorough")]
scenario_suite!(skiplist, Numbers<DividedSkip>: [hostile]);
