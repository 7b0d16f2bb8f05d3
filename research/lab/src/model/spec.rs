//! The parameters of a run: an index, a device, a load and phases of operations.

use super::tuning::TRADITIONAL;
use super::{Device, ModelError, Workload};
use crate::workload::Keys;
use bristlecone_designs::Fill;
use bristlecone_designs::designs::{Choice, DESIGNS, UnknownDesign, VOLATILE, WIDE};

const MAX_THREADS: usize = 64;
const MAX_KEYS: u64 = 200_000_000;
/// A simulation numbers its 8-byte words with 32 bits.
const MAX_BYTES: u64 = 16 << 30;
/// Bytes of an entry of two wide words.
pub(crate) const WIDE_BYTES: u32 = 32;

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct RunSpec {
    /// The design: one of [`RunSpec::indexes`].
    pub index: String,
    /// Bytes of a leaf; `None` for the design's default.
    pub node_bytes: Option<u32>,
    /// Bytes of a key and a value, 16 or, for the designs of [`WIDE`], 32.
    pub entry_bytes: u32,
    /// The memory device that the pool is on.
    pub device: Device,
    /// The operations.
    pub workload: Workload,
    /// Simulated threads, 1 to 64.
    pub threads: usize,
    /// Keys that are loaded before the operations, uncharged.
    pub keys: u64,
    /// Operations of all threads together.
    pub ops: u64,
    /// Fill of the loaded leaves, above 0 to 1, rounded to whole percents.
    pub fill: f64,
    /// Determines the keys and their order.
    pub seed: u64,
}

impl RunSpec {
    /// Returns the defaults of the command line.
    #[must_use]
    pub fn new(index: &str, device: Device, workload: Workload) -> Self {
        Self {
            index: index.to_owned(),
            node_bytes: None,
            entry_bytes: 16,
            device,
            workload,
            threads: 1,
            keys: 200_000,
            ops: 50_000,
            fill: 0.7,
            seed: 42,
        }
    }

    /// Returns the designs that can be run: those of the registry, and `lbtree-traditional`, the
    /// LB+-Tree without entry moving. The Bw-Tree is left out, since its nodes are not in simulated
    /// memory.
    pub fn indexes() -> impl Iterator<Item = &'static str> {
        let designs = DESIGNS.iter().chain(VOLATILE).map(|design| design.name);
        let designs = designs.filter(|name| *name != "bwtree");
        designs.chain([TRADITIONAL])
    }

    /// Returns the name of the design in the registry.
    pub(super) fn design(&self) -> &str {
        match self.index.as_str() {
            TRADITIONAL => "lbtree",
            name => name,
        }
    }

    /// Returns the bytes of a leaf.
    ///
    /// # Errors
    /// [`ModelError::Lab`], naming the design or the size, and the existing ones.
    pub fn leaf_bytes(&self) -> Result<u32, ModelError> {
        let unknown = || {
            let there: Vec<_> = Self::indexes().collect();
            ModelError::parameter("index", &self.index, there.join(" or "))
        };
        if !Self::indexes().any(|name| name == self.index) {
            return Err(unknown());
        }
        let choice = Choice {
            node_bytes: self.node_bytes,
            ..Choice::of(self.design())
        };
        choice
            .resolve()
            .map(|(_, bytes)| bytes)
            .map_err(|e| match e {
                UnknownDesign::NodeBytes { asked, there, .. } => {
                    let there: Vec<_> = there.iter().map(ToString::to_string).collect();
                    ModelError::parameter("the node size", asked, there.join(" or "))
                }
                UnknownDesign::Name(_) => unknown(),
                // `resolve` never returns this.
                UnknownDesign::Narrow { design } => {
                    ModelError::parameter("index", design, WIDE.join(" or "))
                }
            })
    }

    /// Refuses the first parameter that is out of range, for a design with leaves of `node` bytes.
    /// Returns the fill of the loaded leaves.
    pub(super) fn check(&self, node: u32) -> Result<Fill, ModelError> {
        if ![16, WIDE_BYTES].contains(&self.entry_bytes) {
            let asked = self.entry_bytes;
            return Err(ModelError::parameter("entry bytes", asked, "16 or 32"));
        }
        if self.is_wide() && !WIDE.contains(&self.index.as_str()) {
            return Err(self.wide_only());
        }
        if !(1..=MAX_THREADS).contains(&self.threads) {
            let may_be = format!("1 to {MAX_THREADS}");
            return Err(ModelError::parameter("threads", self.threads, may_be));
        }
        if !(1..=MAX_KEYS).contains(&self.keys) {
            let may_be = format!("1 to {MAX_KEYS}");
            return Err(ModelError::parameter("keys", self.keys, may_be));
        }
        if !(1..=MAX_KEYS).contains(&self.ops) {
            let may_be = format!("1 to {MAX_KEYS}");
            return Err(ModelError::parameter("ops", self.ops, may_be));
        }
        if self.workload == Workload::Remove && self.ops > self.keys {
            let may_be = "no more than there are keys, as each is removed once";
            return Err(ModelError::parameter("ops", self.ops, may_be));
        }
        // This refuses NaN too, which becomes 0.
        let fill = Fill::percent((self.fill * 100.0).round() as u8)
            .filter(|_| self.fill <= 1.0)
            .ok_or_else(|| ModelError::parameter("fill", self.fill, "0.01 to 1"))?;
        let bytes = self.pool_bytes(node, fill);
        if bytes > MAX_BYTES {
            let may_be = format!(
                "fewer, as with {} operations the pool may take {} GiB of at most {}; fuller leaves \
                 help as well",
                self.ops,
                bytes >> 30,
                MAX_BYTES >> 30
            );
            return Err(ModelError::parameter("keys", self.keys, may_be));
        }
        Ok(fill)
    }

    /// Returns the bytes of the pool: twice what the load and its splits take, or six times for
    /// designs whose slots are larger than the LB+-Tree's or that keep more than leaves in the
    /// pool. Untouched memory costs nothing.
    pub(super) fn pool_bytes(&self, node: u32, fill: Fill) -> u64 {
        let node = u64::from(node);
        let slots = node * 14 / (16 * u64::from(self.entry_bytes));
        let loaded = self.keys.div_ceil(fill.of(slots as usize) as u64);
        // Each leaf may split at once, and then after half a leaf of operations at the earliest.
        let leaves = loaded + self.ops.min(loaded) + self.ops / (slots / 2).max(1);
        let times = if self.design() == "lbtree" { 2 } else { 6 };
        (leaves * node * times).next_multiple_of(2 << 20) + (64 << 20)
    }

    /// Returns the error for a design that holds no entries of 32 bytes.
    pub(super) fn wide_only(&self) -> ModelError {
        let may_be = format!("{} with entries of 32 bytes", WIDE.join(" or "));
        ModelError::parameter("index", &self.index, may_be)
    }

    /// Returns true if keys and values are of 16 bytes each.
    pub(super) fn is_wide(&self) -> bool {
        self.entry_bytes == WIDE_BYTES
    }

    /// Returns the keys by their numbers.
    pub(super) fn keys_by_number(&self) -> Keys {
        Keys::Random { seed: self.seed }
    }
}

/// One part of a run, with a report of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phase {
    /// The operations.
    pub workload: Workload,
    /// Operations of all threads together.
    pub ops: u64,
    /// True if the phase begins with empty caches.
    pub cold: bool,
    /// Lookups that a thread gives to the index at a time. Other operations come one by one.
    pub batch: usize,
}

impl Phase {
    /// Returns a phase that begins with the caches of the one before.
    pub(crate) const fn of(workload: Workload, ops: u64) -> Self {
        Self {
            workload,
            ops,
            cold: false,
            batch: 1,
        }
    }

    /// Returns the phase with its lookups in batches.
    pub(crate) const fn batched(self, batch: usize) -> Self {
        Self { batch, ..self }
    }
}
