//! Designs behind a table of functions, so that their callers are compiled once.
//!
//! [`maker`] makes and opens engines of every design, by name. This crate compiles them, once for
//! each medium and each kind of keys and values that [`Compiled`] lists. The programs that use them
//! do not compile them again:
//!
//! ```
//! use bristlecone_designs::designs::Choice;
//! use bristlecone_designs::engines::maker;
//! use bristlecone_pmem::media::Auto;
//! use bristlecone_pmem::{Pool, PoolOptions};
//!
//! let dir = tempfile::tempdir()?;
//! let pool = Pool::<Auto>::create(&dir.path().join("pool"), &PoolOptions::default())?;
//! let index = maker::<[u8], [u8], Auto>(&Choice::of("fptree"))?.create(&pool, "main")?;
//! index.insert(b"key", b"value")?;
//! assert_eq!(index.get(b"key").as_deref(), Some(&b"value"[..]));
//! index.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! NV-Store takes engines of one design, from byte strings to offsets ([`Kind`]). Its own is the
//! LB+-Tree; [`NVTREE`], [`FPTREE`] and [`WBTREE`] are others.

use crate::central::CentralOptions;
use crate::designs::{
    AnyDesign, Choice, Design, Fp, Holds, Nv, Task, UnknownDesign, Wb, Wide, WideDesign, WideTask,
    info, table,
};
use crate::index::{DurableIndex, TreeError};
use crate::nvtree::{Adaptivity, NvOptions};
use crate::repr::{KeyRepr, Repr, Stored, StoredKey};
use bristlecone_index::engine::{EngineInfo, EngineKind, engine};
use bristlecone_pmem::media::{Auto, Sim};
#[cfg(not(debug_assertions))]
use bristlecone_pmem::media::{Dram, Mapped};
use bristlecone_pmem::{Media, Pool};
use std::marker::PhantomData;
use std::sync::Arc;

pub use bristlecone_index::engine::{Engine, Range, Visit};

/// Makes and opens engines of one design with its options, on one medium.
pub trait Maker<K, V, M>: Send + Sync
where
    K: ?Sized,
    V: ToOwned + ?Sized,
    M: Media,
{
    /// [`DurableIndex::create`]
    ///
    /// # Errors
    /// As there.
    fn create(&self, pool: &Arc<Pool<M>>, root: &str) -> Result<Box<dyn Engine<K, V>>, TreeError>;

    /// [`DurableIndex::open`]
    ///
    /// # Errors
    /// As there.
    fn open(&self, pool: &Arc<Pool<M>>, root: &str) -> Result<Box<dyn Engine<K, V>>, TreeError>;

    /// [`DurableIndex::SNAPSHOT`]
    fn snapshot(&self) -> bool;

    /// [`Design::failure_unit`]
    fn failure_unit(&self) -> u8;

    /// [`Design::longest_key`]
    fn longest_key(&self) -> usize;

    /// [`Design::longest_value`]
    fn longest_value(&self) -> usize;
}

impl<D, K, V, M> Maker<K, V, M> for D
where
    D: Holds<K, V, M, Held: 'static>,
    K: StoredKey + ?Sized + 'static,
    V: Stored + ?Sized + 'static,
    M: Media,
{
    fn create(&self, pool: &Arc<Pool<M>>, root: &str) -> Result<Box<dyn Engine<K, V>>, TreeError> {
        self.create_at(pool, root).map(engine)
    }

    fn open(&self, pool: &Arc<Pool<M>>, root: &str) -> Result<Box<dyn Engine<K, V>>, TreeError> {
        self.open_at(pool, root).map(engine)
    }

    fn snapshot(&self) -> bool {
        D::Held::SNAPSHOT
    }

    fn failure_unit(&self) -> u8 {
        self.unit()
    }

    fn longest_key(&self) -> usize {
        self.max_key()
    }

    fn longest_value(&self) -> usize {
        self.max_value()
    }
}

/// A medium for which this crate compiles engines from `K` to `V` of every design.
pub trait Compiled<K, V>: Media
where
    K: ?Sized,
    V: ToOwned + ?Sized,
{
    /// Returns a maker of the design's engines, or `None` if the design holds no such keys and
    /// values.
    fn maker_of(design: AnyDesign) -> Option<Box<dyn Maker<K, V, Self>>>;
}

/// Returns a maker of the chosen design's engines.
///
/// # Errors
/// [`UnknownDesign`]
pub fn maker<K, V, M>(choice: &Choice<'_>) -> Result<Box<dyn Maker<K, V, M>>, UnknownDesign>
where
    K: ?Sized,
    V: ToOwned + ?Sized,
    M: Compiled<K, V>,
{
    let design = info(choice.name)?.name;
    M::maker_of(AnyDesign::of(choice)?).ok_or(UnknownDesign::Narrow { design })
}

/// Boxes a design as a [`Maker`].
struct Boxed<K: ?Sized, V: ?Sized, M>(PhantomData<fn(&K, &V, M)>);

impl<K, V, M> Task for Boxed<K, V, M>
where
    K: KeyRepr + ?Sized + 'static,
    V: Repr + ?Sized + 'static,
    M: Media,
{
    type Output = Box<dyn Maker<K, V, M>>;

    fn run<D: Design>(self, design: D) -> Self::Output {
        Box::new(design)
    }
}

impl<M: Media> WideTask for Boxed<u128, u128, M> {
    type Output = Box<dyn Maker<u128, u128, M>>;

    fn run_wide<D: WideDesign>(self, design: D) -> Self::Output {
        Box::new(Wide(design))
    }
}

/// Compiles every design for these kinds of keys and values on these media. The functions are not
/// generic, so that this crate has their code.
macro_rules! compiled {
    ($($(#[$when:meta])* $key:ty, $value:ty: $medium:ty;)*) => {$(
        $(#[$when])*
        impl Compiled<$key, $value> for $medium {
            fn maker_of(design: AnyDesign) -> Option<Box<dyn Maker<$key, $value, Self>>> {
                Some(design.run(Boxed(PhantomData)))
            }
        }
    )*};
}

compiled! {
    // For the crash explorer and the device model.
    u64, u64: Sim;
    [u8], [u8]: Sim;
    // For databases of the command line.
    [u8], [u8]: Auto;
    // For measurements.
    u64, u64: Auto;
    #[cfg(not(debug_assertions))]
    u64, u64: Mapped;
    #[cfg(not(debug_assertions))]
    u64, u64: Dram;
}

impl Compiled<u128, u128> for Sim {
    fn maker_of(design: AnyDesign) -> Option<Box<dyn Maker<u128, u128, Self>>> {
        design.run_wide(Boxed(PhantomData))
    }
}

/// Engines of an NV-Store, of one design.
#[derive(Clone, Copy, Debug)]
pub struct Kind<D> {
    info: EngineInfo,
    /// Returns the design with that leaf size, recovered by that many threads.
    design: fn(u32, usize) -> D,
}

impl<D: Design, M: Media> EngineKind<M> for Kind<D> {
    fn info(&self) -> EngineInfo {
        self.info
    }

    fn create(
        &self,
        pool: &Arc<Pool<M>>,
        root: &str,
        node_bytes: u32,
        recovery_threads: usize,
    ) -> Result<Box<dyn Engine>, TreeError> {
        let design = (self.design)(node_bytes, recovery_threads);
        design.create::<[u8], u64, M>(pool, root).map(engine)
    }

    fn open(
        &self,
        pool: &Arc<Pool<M>>,
        root: &str,
        node_bytes: u32,
        recovery_threads: usize,
    ) -> Result<Box<dyn Engine>, TreeError> {
        let design = (self.design)(node_bytes, recovery_threads);
        design.open::<[u8], u64, M>(pool, root).map(engine)
    }
}

const NVTREE_INFO: EngineInfo = EngineInfo {
    name: table::NVTREE.name,
    node_bytes: table::NVTREE.node_bytes,
    default_node_bytes: table::NVTREE.default_node_bytes,
};

/// NV-Trees.
pub const NVTREE: Kind<Nv> = Kind {
    info: NVTREE_INFO,
    design: |leaf_bytes, recovery_threads| {
        Nv(NvOptions {
            leaf_bytes,
            recovery_threads,
            ..NvOptions::default()
        })
    },
};

/// NV-Trees whose leaves keep their size: the paper's NV-Tree'. Their stores open as [`NVTREE`],
/// too.
pub const NVTREE_PLAIN: Kind<Nv> = Kind {
    info: NVTREE_INFO,
    design: |leaf_bytes, recovery_threads| {
        Nv(NvOptions {
            leaf_bytes,
            recovery_threads,
            adaptivity: Adaptivity::Off,
            ..NvOptions::default()
        })
    },
};

/// FPTrees with leaves of 256 bytes.
pub const FPTREE: Kind<Fp<1>> = Kind {
    info: of_256(table::FPTREE.name),
    design: |_, recovery_threads| Fp(leaves(recovery_threads)),
};

/// wB+-Trees with leaves of 256 bytes.
pub const WBTREE: Kind<Wb<1>> = Kind {
    info: of_256(table::WBTREE.name),
    design: |_, recovery_threads| Wb(leaves(recovery_threads)),
};

const fn of_256(name: &'static str) -> EngineInfo {
    EngineInfo {
        name,
        node_bytes: &[256],
        default_node_bytes: 256,
    }
}

fn leaves(recovery_threads: usize) -> CentralOptions {
    CentralOptions {
        recovery_threads,
        ..CentralOptions::default()
    }
}
