//! Facts about each design: its name, a summary, its leaf sizes.

use crate::btree::NODE_BYTES;
use crate::nvta::NVTA_BYTES;
use crate::{bwtree, bztree, crabtree, fastfair, lstree, nvtree};
use bristlecone_index::clustered;
use bristlecone_index::engine::LbEngine;
use std::fmt;

/// Facts about a design, for choosing one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DesignInfo {
    /// Name in the root table and on command lines.
    pub name: &'static str,
    /// One line for people.
    pub summary: &'static str,
    /// Leaf sizes in bytes, ascending.
    pub node_bytes: &'static [u32],
    /// Leaf size by default.
    pub default_node_bytes: u32,
    /// Leaf sizes for the crash explorer, small enough for frequent splits. Empty if it explores
    /// the default size alone.
    pub explored_bytes: &'static [u32],
}

impl DesignInfo {
    /// Returns the leaf sizes for the crash explorer.
    #[must_use]
    pub const fn explored(&'static self) -> &'static [u32] {
        if self.explored_bytes.is_empty() {
            std::slice::from_ref(&self.default_node_bytes)
        } else {
            self.explored_bytes
        }
    }
}

const BLOCKS: &[u32] = &[256, 512, 1024];

pub(crate) const NVTREE: DesignInfo = DesignInfo {
    name: "nvtree",
    summary: "NV-Tree: append-only leaves whose sizes follow the workload, inner nodes rebuilt",
    node_bytes: nvtree::NODE_BYTES,
    default_node_bytes: 1024,
    explored_bytes: &[256],
};

pub(crate) const FPTREE: DesignInfo = DesignInfo {
    name: "fptree",
    summary: "FPTree: fingerprints, splits under a micro-log",
    node_bytes: BLOCKS,
    default_node_bytes: 256,
    explored_bytes: &[256, 1024],
};

pub(crate) const WBTREE: DesignInfo = DesignInfo {
    name: "wbtree",
    summary: "wB+-Tree: entries kept in order by a slot array, splits by a redo log",
    node_bytes: BLOCKS,
    default_node_bytes: 256,
    explored_bytes: &[256, 1024],
};

/// Every design that lives in a pool.
pub const DESIGNS: &[DesignInfo] = &[
    DesignInfo {
        name: LbEngine::INFO.name,
        summary: "LB+-Tree: fewest line writes per insertion, logless splits",
        node_bytes: LbEngine::INFO.node_bytes,
        default_node_bytes: LbEngine::INFO.default_node_bytes,
        explored_bytes: &[256, 512],
    },
    DesignInfo {
        name: "clustered",
        summary: "clustered tree: leaf pages that hold what they index, appended to with one fence",
        node_bytes: clustered::PAGE_BYTES,
        default_node_bytes: clustered::DEFAULT_PAGE_BYTES,
        explored_bytes: &[1024],
    },
    DesignInfo {
        name: "cddstree",
        summary: "CDDS-Tree: sorted, versioned entries; all nodes persistent, no log",
        node_bytes: &[256, 512, 1024, 2048, 4096],
        default_node_bytes: 1024,
        explored_bytes: &[256, 512],
    },
    DesignInfo {
        name: "bztree",
        summary: "BzTree: latch-free B+-tree on a persistent multi-word compare-and-swap; recovery without a walk",
        node_bytes: bztree::NODE_BYTES,
        default_node_bytes: 1024,
        explored_bytes: &[256],
    },
    DesignInfo {
        name: "crabtree",
        summary: "Crab-tree: sorted leaves, changed by shifting in place or by copying",
        node_bytes: crabtree::NODE_BYTES,
        default_node_bytes: 1024,
        explored_bytes: &[256],
    },
    DesignInfo {
        name: "crabtree-opt",
        summary: "Crab_opt: Crab-tree with self-managed space, approximate probe, 16-byte stores",
        node_bytes: crabtree::NODE_BYTES,
        default_node_bytes: 1024,
        explored_bytes: &[256],
    },
    FPTREE,
    WBTREE,
    DesignInfo {
        name: "fastfair",
        summary: "FAST/FAIR: sorted nodes shifted failure-atomically, siblings before children, no log",
        node_bytes: fastfair::NODE_BYTES,
        default_node_bytes: 512,
        explored_bytes: &[256],
    },
    DesignInfo {
        name: "fastfair-sp",
        summary: "FAST/FAIR SP: the leaves of FAST/FAIR under inner nodes in DRAM",
        node_bytes: BLOCKS,
        default_node_bytes: 512,
        explored_bytes: &[256],
    },
    DesignInfo {
        name: "skiplist-nvm",
        summary: "skip list in the pool, towers included",
        node_bytes: &[32],
        default_node_bytes: 32,
        explored_bytes: &[],
    },
    DesignInfo {
        name: "skiplist-divided",
        summary: "skip list with its bottom list in the pool and its towers in DRAM",
        node_bytes: &[32],
        default_node_bytes: 32,
        explored_bytes: &[],
    },
    DesignInfo {
        name: "lcbtree",
        summary: "LCB+-Tree: B+-tree in persistent memory, every change logged",
        node_bytes: NODE_BYTES,
        default_node_bytes: 1024,
        explored_bytes: &[256],
    },
    DesignInfo {
        name: "btree-wal",
        summary: "btree-WAL: B+-tree in persistent memory under a write-ahead log of what changes",
        node_bytes: NODE_BYTES,
        default_node_bytes: 512,
        explored_bytes: &[128, 256],
    },
    DesignInfo {
        name: "unsorted",
        summary: "persistent unsorted: B+-tree in persistent memory with bitmap leaves",
        node_bytes: NODE_BYTES,
        default_node_bytes: 512,
        explored_bytes: &[256],
    },
    NVTREE,
    DesignInfo {
        name: "lstree",
        summary: "btree-LS: log-structured B+-tree, one sequential write per change",
        node_bytes: lstree::NODE_BYTES,
        default_node_bytes: 512,
        explored_bytes: &[256],
    },
    DesignInfo {
        name: "nvta",
        summary: "NVT-A: append-only leaves under persistent inner nodes, for comparison with NV-Tree",
        node_bytes: NVTA_BYTES,
        default_node_bytes: 1024,
        explored_bytes: &[256],
    },
];

/// Designs that keep nothing, to show what durability costs. They can be measured, and not created
/// for use.
pub const VOLATILE: &[DesignInfo] = &[
    DesignInfo {
        name: "btree",
        summary: "conventional B+-tree without durability, for comparison",
        node_bytes: NODE_BYTES,
        default_node_bytes: 512,
        explored_bytes: &[],
    },
    DesignInfo {
        name: "btree-gf",
        summary: "the same, flushing neighbouring modified lines together (group flushing)",
        node_bytes: NODE_BYTES,
        default_node_bytes: 512,
        explored_bytes: &[],
    },
    DesignInfo {
        name: "btree-gf-load",
        summary: "the same, flushing in groups while many threads write",
        node_bytes: NODE_BYTES,
        default_node_bytes: 512,
        explored_bytes: &[],
    },
    DesignInfo {
        name: "unsorted-leaf",
        summary: "B+-tree with bitmap leaves without durability, for comparison",
        node_bytes: NODE_BYTES,
        default_node_bytes: 512,
        explored_bytes: &[],
    },
    DesignInfo {
        name: "bwtree",
        summary: "Bw-Tree without durability, for comparison",
        node_bytes: bwtree::NODE_BYTES,
        default_node_bytes: 1024,
        explored_bytes: &[],
    },
];

/// Designs that can hold keys and values of 16 bytes ([`WideDesign`](super::WideDesign)).
pub const WIDE: &[&str] = &[
    "fastfair",
    "fastfair-sp",
    "lcbtree",
    "btree-wal",
    "unsorted",
    "nvta",
    "btree",
    "btree-gf",
    "btree-gf-load",
    "unsorted-leaf",
];

/// A design, and how to run it where it can be run in several ways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<'a> {
    /// A name of [`DESIGNS`] or [`VOLATILE`].
    pub name: &'a str,
    /// Bytes in a leaf; `None` for the design's default.
    pub node_bytes: Option<u32>,
    /// Number of threads that recover.
    pub recovery_threads: usize,
}

impl<'a> Choice<'a> {
    /// Returns the design in its default leaf size, recovered by one thread.
    #[must_use]
    pub const fn of(name: &'a str) -> Self {
        Self {
            name,
            node_bytes: None,
            recovery_threads: 1,
        }
    }

    /// Returns the design and the number of bytes in a leaf.
    ///
    /// # Errors
    /// [`UnknownDesign`].
    pub fn resolve(&self) -> Result<(&'static DesignInfo, u32), UnknownDesign> {
        let info = info(self.name)?;
        let asked = self.node_bytes.unwrap_or(info.default_node_bytes);
        if info.node_bytes.contains(&asked) {
            return Ok((info, asked));
        }
        Err(UnknownDesign::NodeBytes {
            design: info.name,
            asked,
            there: info.node_bytes,
        })
    }
}

/// There is no such design.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnknownDesign {
    /// The name is none of [`DESIGNS`] or [`VOLATILE`].
    Name(String),
    /// The design has no such leaf size.
    NodeBytes {
        /// The design.
        design: &'static str,
        /// The size that was asked for.
        asked: u32,
        /// The sizes that the design has.
        there: &'static [u32],
    },
    /// The design holds no 16-byte keys and values.
    Narrow {
        /// The design.
        design: &'static str,
    },
}

fn listed(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

impl fmt::Display for UnknownDesign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => {
                let all = DESIGNS.iter().chain(VOLATILE);
                let names = listed(all.map(|design| design.name.to_owned()));
                write!(f, "there is no index design {name:?}; there are {names}")
            }
            Self::NodeBytes {
                design,
                asked,
                there,
            } => {
                let there = listed(there.iter().map(ToString::to_string));
                write!(f, "{design} has no leaves of {asked} bytes; it has {there}")
            }
            Self::Narrow { design } => {
                let there = listed(WIDE.iter().map(ToString::to_string));
                write!(
                    f,
                    "{design} takes no keys and values of 16 bytes; these do: {there}"
                )
            }
        }
    }
}

impl std::error::Error for UnknownDesign {}

/// Returns the facts about a design.
///
/// # Errors
/// [`UnknownDesign::Name`].
pub fn info(name: &str) -> Result<&'static DesignInfo, UnknownDesign> {
    DESIGNS
        .iter()
        .chain(VOLATILE)
        .find(|design| design.name == name)
        .ok_or_else(|| UnknownDesign::Name(name.to_owned()))
}
