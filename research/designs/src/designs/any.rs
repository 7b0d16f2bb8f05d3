//! A design with its options, chosen when the program runs.

use super::{
    Bw, Bz, Cdds, Choice, Clustered, Crab, Design, DividedSkip, Fair, FairSp, Fp, Lb, Lcb, Ls, Nv,
    NvmSkip, NvtA, UnknownDesign, Unsorted, Wal, Wb, WideDesign,
};
use crate::btree::{BTreeOptions, GroupFlush};
use crate::bwtree::BwOptions;
use crate::bztree::BzOptions;
use crate::cddstree::CddsOptions;
use crate::central::CentralOptions;
use crate::clustered::ClusteredOptions;
use crate::crabtree::CrabOptions;
use crate::fastfair::FastFairOptions;
use crate::lbtree::LbOptions;
use crate::leaftree::LeafOptions;
use crate::lstree::LsOptions;
use crate::nvtree::NvOptions;
use crate::skiplist::SkipOptions;

/// Code that is compiled for each design.
pub trait Task {
    /// Type of the result.
    type Output;

    /// Runs with this design.
    fn run<D: Design>(self, design: D) -> Self::Output;
}

/// Code that is compiled for each design of keys and values of 16 bytes.
pub(crate) trait WideTask {
    /// Type of the result.
    type Output;

    /// Runs with this design.
    fn run_wide<D: WideDesign>(self, design: D) -> Self::Output;
}

/// Defines [`AnyDesign`] from its variants. The first ones also hold keys and values of 16 bytes.
macro_rules! any_design {
    (wide: $($wide:ident($wide_design:ty)),*; narrow: $($narrow:ident($design:ty)),* $(,)?) => {
        /// Any design, with its options.
        #[derive(Clone, Debug)]
        #[allow(missing_docs, reason = "each variant is the design that it holds")]
        pub enum AnyDesign {
            $($wide($wide_design),)*
            $($narrow($design),)*
        }

        impl AnyDesign {
            /// Runs `task` with the design.
            pub fn run<T: Task>(self, task: T) -> T::Output {
                match self {
                    $(Self::$wide(design) => task.run(design),)*
                    $(Self::$narrow(design) => task.run(design),)*
                }
            }

            /// Runs `task` with the design. Returns `None` if the design holds no keys and values
            /// of 16 bytes.
            pub(crate) fn run_wide<T: WideTask>(self, task: T) -> Option<T::Output> {
                match self {
                    $(Self::$wide(design) => Some(task.run_wide(design)),)*
                    _ => None,
                }
            }
        }

        $(any_design!(@from $wide($wide_design));)*
        $(any_design!(@from $narrow($design));)*
    };
    (@from $variant:ident($design:ty)) => {
        impl From<$design> for AnyDesign {
            fn from(design: $design) -> Self {
                Self::$variant(design)
            }
        }
    };
}

any_design!(
    wide: Fair(Fair), FairSp256(FairSp<1>), FairSp512(FairSp<2>), FairSp1024(FairSp<4>), Lcb(Lcb), Wal(Wal),
    Unsorted(Unsorted), NvtA(NvtA);
    narrow: Lb256(Lb<1>), Lb512(Lb<2>), Lb1024(Lb<4>), Bz(Bz), Cdds(Cdds), Clustered(Clustered), Crab(Crab), NvmSkip(NvmSkip),
    DividedSkip(DividedSkip), Fp256(Fp<1>), Fp512(Fp<2>), Fp1024(Fp<4>), Wb256(Wb<1>), Wb512(Wb<2>),
    Wb1024(Wb<4>), Bw(Bw), Nv(Nv), Ls(Ls),
);

/// Options that the B+-trees in persistent memory share.
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

impl AnyDesign {
    /// Returns the chosen design with its usual options.
    ///
    /// # Errors
    /// [`UnknownDesign`]
    pub fn of(choice: &Choice<'_>) -> Result<Self, UnknownDesign> {
        let (info, bytes) = choice.resolve()?;
        let recovery_threads = choice.recovery_threads;
        let lb = LbOptions {
            recovery_threads,
            ..LbOptions::default()
        };
        let leaf = LeafOptions { recovery_threads };
        let central = CentralOptions {
            recovery_threads,
            ..CentralOptions::default()
        };
        let family = Family::new(bytes, recovery_threads);
        let crab = |options| CrabOptions {
            leaf_bytes: bytes,
            recovery_threads,
            ..options
        };
        Ok(match (info.name, bytes) {
            ("lbtree", 256) => Lb::<1>(lb).into(),
            ("lbtree", 512) => Lb::<2>(lb).into(),
            ("lbtree", 1024) => Lb::<4>(lb).into(),
            ("fastfair-sp", 256) => FairSp::<1>(leaf).into(),
            ("fastfair-sp", 512) => FairSp::<2>(leaf).into(),
            ("fastfair-sp", 1024) => FairSp::<4>(leaf).into(),
            ("crabtree", _) => Crab(crab(CrabOptions::PLAIN)).into(),
            ("crabtree-opt", _) => Crab(crab(CrabOptions::OPTIMIZED)).into(),
            ("skiplist-nvm", 32) => NvmSkip(SkipOptions::default()).into(),
            ("skiplist-divided", 32) => DividedSkip(SkipOptions::default()).into(),
            ("lcbtree", _) => Lcb(family.durable).into(),
            ("btree-wal", _) => Wal(family.durable).into(),
            ("unsorted", _) => Unsorted(family.durable).into(),
            ("nvta", _) => NvtA(family.durable).into(),
            ("btree", _) => Lcb(family.volatile(GroupFlush::Off)).into(),
            ("btree-gf", _) => Lcb(family.volatile(GroupFlush::On)).into(),
            ("btree-gf-load", _) => Lcb(family.volatile(GroupFlush::UNDER_LOAD)).into(),
            ("unsorted-leaf", _) => Unsorted(family.volatile(GroupFlush::Off)).into(),
            (name, _) => match Self::central(name, bytes, central) {
                Some(design) => design,
                None => return Self::of_any_size(name, bytes, recovery_threads),
            },
        })
    }

    /// Returns an FPTree or a wB+-Tree with options; `None` for any other name, and for sizes that
    /// they do not have.
    #[must_use]
    pub fn central(name: &str, leaf_bytes: u32, options: CentralOptions) -> Option<Self> {
        Some(match (name, leaf_bytes) {
            ("fptree", 256) => Fp::<1>(options).into(),
            ("fptree", 512) => Fp::<2>(options).into(),
            ("fptree", 1024) => Fp::<4>(options).into(),
            ("wbtree", 256) => Wb::<1>(options).into(),
            ("wbtree", 512) => Wb::<2>(options).into(),
            ("wbtree", 1024) => Wb::<4>(options).into(),
            _ => return None,
        })
    }

    /// Returns the design `name`, if its options are the leaf size and, for designs that recover by
    /// a walk, the threads.
    fn of_any_size(name: &str, bytes: u32, recovery_threads: usize) -> Result<Self, UnknownDesign> {
        Ok(match name {
            "bztree" => Bz(BzOptions {
                node_bytes: bytes,
                ..BzOptions::default()
            })
            .into(),
            "clustered" => Clustered(ClusteredOptions { page_bytes: bytes }).into(),
            "cddstree" => Cdds(CddsOptions {
                node_bytes: bytes,
                recovery_threads,
            })
            .into(),
            "fastfair" => Fair(FastFairOptions {
                node_bytes: bytes,
                recovery_threads,
                ..FastFairOptions::default()
            })
            .into(),
            "bwtree" => Bw(BwOptions {
                node_bytes: bytes,
                ..BwOptions::default()
            })
            .into(),
            "nvtree" => Nv(NvOptions {
                leaf_bytes: bytes,
                recovery_threads,
                ..NvOptions::default()
            })
            .into(),
            "lstree" => Ls(LsOptions {
                leaf_bytes: bytes,
                recovery_threads,
                ..LsOptions::default()
            })
            .into(),
            // An entry of DESIGNS lacks its arm; the tests make every design.
            _ => return Err(UnknownDesign::Name(name.to_owned())),
        })
    }
}

/// Runs `task` with the chosen design.
///
/// # Errors
/// [`UnknownDesign`]; the task has not run.
pub fn with_design<T: Task>(choice: &Choice<'_>, task: T) -> Result<T::Output, UnknownDesign> {
    Ok(AnyDesign::of(choice)?.run(task))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_or_leaf_size_is_named() {
        let error = AnyDesign::of(&Choice::of("btree-2000")).unwrap_err();
        assert!(error.to_string().contains("\"btree-2000\""), "{error}");
        let choice = Choice {
            node_bytes: Some(300),
            ..Choice::of("lbtree")
        };
        let error = AnyDesign::of(&choice).unwrap_err().to_string();
        assert!(
            error.contains("300") && error.contains("256, 512"),
            "{error}"
        );
    }
}
