//! Faults that can be planted in the designs, the multi-word swap and the pool
//! ([`Simulation::plant`](bristlecone_pmem::media::sim::Simulation::plant)). They are mistakes that
//! take code, while mutants only leave out flushes and fences. On real media they are compiled out.

use crate::subject::FaultKind::{
    self, Leak, Lost, Progress, Recovery, Structure, Torn, VisibleBeforeDurable,
};
use crate::workload::Kind;
use bristlecone_pmem::media::sim::Model;

/// A fault that can be planted.
#[derive(Clone, Copy, Debug)]
pub struct Planted {
    /// Its name.
    pub name: &'static str,
    /// Number in the list of [known mistakes](super#known-mistakes).
    pub errata: u8,
    /// A subject in which it shows.
    pub subject: &'static str,
    /// A kind of workload in which it shows.
    pub workload: Kind,
    /// The kinds of fault that the explorer may report for it.
    pub kinds: &'static [FaultKind],
    /// The mistake, for people.
    pub what: &'static str,
    /// A persistency model under which it shows.
    pub model: Model,
    /// Number of threads that it takes.
    pub threads: u8,
    /// It shows after a second crash, which follows a recovery.
    pub nested: bool,
    /// It shows after a kill, and a power cut that follows the next opening.
    pub kills: bool,
}

impl Planted {
    const fn under(mut self, model: Model) -> Self {
        self.model = model;
        self
    }

    const fn nested(mut self) -> Self {
        self.nested = true;
        self
    }

    const fn after_a_kill(mut self) -> Self {
        self.kills = true;
        self
    }

    const fn with_threads(mut self) -> Self {
        self.threads = 3;
        self
    }
}

const fn plant(
    name: &'static str,
    errata: u8,
    subject: &'static str,
    workload: Kind,
    kinds: &'static [FaultKind],
    what: &'static str,
) -> Planted {
    Planted {
        name,
        errata,
        subject,
        workload,
        kinds,
        what,
        model: Model::X86Tso,
        threads: 1,
        nested: false,
        kills: false,
    }
}

/// All planted faults.
#[rustfmt::skip]
pub const PLANTED: &[Planted] = &[
    plant("lbtree-header-first", 1, "lbtree-256-u64", Kind::Split, &[Structure, Recovery, Torn],
        "an insert's header is durable before its entry is written"),
    plant("lbtree-link-first", 2, "lbtree-256-u64", Kind::Split, &[Lost, Structure, Recovery],
        "a split links the new leaf in before it is written"),
    plant("clustered-ceiling", 8, "clustered-1024-u64", Kind::Mixed, &[Lost, Torn, Structure, Leak, Recovery, Progress],
        "generations and stamps come again after a crash, since their ceilings are not raised"),
    plant("clustered-born-settled", 18, "clustered-1024-u64", Kind::Split, &[Leak, Structure, Recovery],
        "the word of a split's new page does not say that the page is newborn"),
    plant("clustered-born-cleared", 21, "clustered-1024-u64", Kind::Split, &[Lost, Structure, Recovery],
        "recovery clears newborn pages that a split has made count"),
    plant("clustered-split-first", 2, "clustered-1024-u64", Kind::Split, &[Lost, Structure, Recovery],
        "a split replaces the left page before the new pages are durable"),
    plant("clustered-group-line", 3, "clustered-1024-u64", Kind::Split, &[Lost],
        "a group's lines are not flushed"),
    plant("clustered-root-first", 5, "clustered-1024-u64", Kind::Upkeep, &[Recovery],
        "the root is published before the first page"),
    plant("clustered-slot-first", 2, "clustered-1024-u64-batches", Kind::Mixed, &[Torn, Lost],
        "a batch is committed before its groups are durable"),
    plant("clustered-void-kept", 19, "clustered-1024-u64-batches", Kind::Mixed, &[Torn],
        "groups count whose batch was not committed"),
    plant("clustered-dead-unwiped", 21, "clustered-1024-u64-batches", Kind::Mixed, &[Torn, Structure],
        "recovery leaves groups that a later batch makes count").nested(),
    plant("clustered-session-forgotten", 21, "clustered-1024-u64-batches-lazy", Kind::Mixed, &[Torn],
        "what the slots said before a crash is not kept, and they are used again").nested(),
    plant("clustered-snapshot-early", 22, "clustered-1024-u64-batches", Kind::Mixed, &[Torn, FaultKind::Wrong],
        "a snapshot does not wait for earlier changes to be shown").with_threads(),
    plant("clustered-history-dropped", 22, "clustered-1024-u64-batches", Kind::Mixed, &[Torn, FaultKind::Wrong],
        "a page is replaced, and what a snapshot reads is not kept").with_threads(),
    plant("clustered-conflict-missed", 23, "clustered-1024-u64-batches", Kind::Mixed, &[FaultKind::Wrong, Lost],
        "a batch is written although a key that it rests on has changed").with_threads(),
    plant("clustered-outer-uncleared", 18, "clustered-1024-bytes", Kind::Mixed, &[Leak, Structure, Recovery, Progress],
        "the word of a value that no change brought is left"),
    plant("clustered-outer-unchecked", 1, "clustered-1024-bytes", Kind::Mixed, &[Lost, Torn, Structure, Recovery],
        "a change counts although its value, in a block of its own, is not durable"),
    plant("clustered-outer-undropped", 21, "clustered-1024-bytes", Kind::Mixed, &[Leak],
        "values that a replacement dropped are not looked for when their page is loaded"),
    plant("clustered-outer-dropped-first", 11, "clustered-1024-bytes", Kind::Mixed, &[Lost, Structure, Recovery, Progress],
        "a replacement drops values before it counts"),
    plant("nvtree-counter-first", 1, "nvtree-256-u64", Kind::Split, &[Recovery, Torn],
        "an append's counter is durable before its element is"),
    plant("nvtree-link-first", 2, "nvtree-256-u64", Kind::Split, &[Recovery],
        "a split, replacement or merge links the new leaves in before they are durable"),
    plant("nvtree-update-twice", 9, "nvtree-256-u64", Kind::Update, &[Torn],
        "an update's two elements are made to count by two stores of the counter"),
    plant("crabtree-link-first", 2, "crabtree-256-u64-copying", Kind::Split, &[Lost, Structure, Recovery],
        "a copied leaf is linked in before it is durable"),
    plant("crabtree-split-first", 2, "crabtree-256-u64", Kind::Split, &[Lost, Structure, Recovery],
        "a split counts its upper half out before the new leaf is durable"),
    plant("crabtree-merge-key-first", 1, "crabtree-256-u64", Kind::Merge, &[Lost, Torn, Structure, Recovery],
        "a merge stores the first pair's key with the other pairs, which makes it an insertion"),
    plant("crabtree-no-store-fence", 13, "crabtree-256-u64", Kind::Split, &[Lost, Torn, Structure, Recovery],
        "shifting does without the store fences that keep the order of the stores to a line").under(Model::ArmV8),
    plant("lstree-sum-of-a-line", 4, "lstree-256-u64", Kind::Split, &[Lost, Torn, Structure, Recovery],
        "a record's checksum covers its first line alone, so that torn records pass"),
    plant("lstree-split-in-two", 10, "lstree-256-u64", Kind::Split, &[Lost],
        "a split writes the lower half's base before the record of both leaves"),
    plant("lstree-drop-first", 11, "lstree-256-u64", Kind::Update, &[Lost, Recovery],
        "a collected segment leaves its log before what is live in it was copied"),
    plant("lstree-replay-unordered", 12, "lstree-256-u64", Kind::Update, &[Lost, Structure, Recovery],
        "recovery takes a leaf's records in the order of the logs, where collection moved some of them"),
    plant("lstree-forget-early", 12, "lstree-256-u64", Kind::Drain, &[FaultKind::Phantom, Structure, Recovery, Progress],
        "an emptied leaf's base is dropped while older records of the leaf are in a log"),
    plant("lstree-salt-of-the-tree", 17, "lstree-256-u64", Kind::Update, &[Lost, FaultKind::Phantom, Torn, Structure, Recovery, Progress],
        "records of an earlier round in a segment's memory pass for records of this one"),
    plant("lbtree-record-line", 3, "lbtree-256-bytes", Kind::Split, &[Lost, Structure, Recovery],
        "a line behind a record is flushed instead of the record's"),
    plant("lbtree-root-first", 5, "lbtree-256-u64", Kind::Upkeep, &[Recovery],
        "the root is published before its head pointer"),
    plant("pool-root-first", 5, "pool", Kind::Drain, &[Recovery],
        "a root is published before its descriptor"),
    plant("pool-assignment-lost", 6, "pool", Kind::Drain, &[Recovery],
        "a chunk's owner is not flushed"),
    plant("lbtree-snapshot-kept", 8, "lbtree-256-u64", Kind::Upkeep, &[Structure, Leak, Lost, Recovery],
        "the snapshot of a clean close still counts after it was read"),
    plant("lbtree-switch-first", 8, "lbtree-256-u64", Kind::Drain, &[Lost, Structure, Recovery],
        "a leaf is unlinked before the inactive sibling pointer is written"),
    plant("pool-both-copies", 9, "pool", Kind::Upkeep, &[Recovery],
        "both superblock copies are written before either is durable"),
    plant("lbtree-clear-before-switch", 10, "lbtree-256-u64", Kind::Split, &[Lost],
        "a split clears the moved slots before the new leaf is linked in"),
    plant("lbtree-delete-then-insert", 11, "lbtree-256-u64", Kind::Split, &[Lost],
        "entries are moved by deleting, then inserting them"),
    plant("lbtree-two-stores", 13, "lbtree-256-u64", Kind::Update, &[Torn],
        "an update stores the value word in two halves"),
    plant("lbtree-word0-first", 13, "lbtree-256-u64", Kind::Split, &[Structure],
        "the header word with the bitmap is stored before the other one"),
    plant("unlock before fence", 14, "lbtree-256-u64", Kind::Mixed, &[VisibleBeforeDurable],
        "a leaf is unlocked before its header is flushed").with_threads(),
    plant("pmwcas-sorted-late", 13, "pmwcas-6", Kind::Drain, &[Torn, Lost, Structure, Recovery, Leak],
        "a descriptor's entries are put in order after it was made durable"),
    plant("pmwcas-first-unused", 19, "pmwcas-6", Kind::Mixed, &[Torn, Lost, Structure, Recovery, Leak],
        "recovery takes descriptors for unused because the first one is"),
    plant("pmwcas-attempt-kept", 16, "pmwcas-6", Kind::Mixed, &[Torn, Lost, Structure, Recovery, Leak],
        "recovery leaves conditional pointers in their words"),
    plant("pmwcas-status-late", 14, "pmwcas-6", Kind::Mixed, &[Torn, Lost, Structure, Leak],
        "new values are stored before the status that says so is durable"),
    plant("pmwcas-dirty-status", 14, "pmwcas-6", Kind::Mixed, &[VisibleBeforeDurable, Torn, Lost, Structure, Leak],
        "a helper acts on a status that is not durable").with_threads(),
    plant("pmwcas-unconditional", 20, "pmwcas-6", Kind::Mixed, &[FaultKind::Wrong, Torn, Lost, Structure, Recovery, Leak],
        "pointers are installed without a check that the operation is undecided").with_threads(),
    plant("pmwcas-free-first", 18, "pmwcas-6", Kind::Update, &[Leak],
        "a descriptor is free before the blocks that it names are"),
    plant("pmwcas-not-recycled", 18, "pmwcas-6", Kind::Update, &[Leak, Progress],
        "the old block of an operation that succeeded is not recycled"),
    plant("pmwcas-recycled-twice", 18, "pmwcas-6", Kind::Update, &[FaultKind::Wrong, Progress],
        "a block is handed back twice"),
    plant("bztree-record-lost", 1, "bztree-256-u64", Kind::Split, &[Lost, Torn, Structure, Recovery],
        "a record is visible before it is durable"),
    plant("bztree-node-lost", 2, "bztree-256-u64", Kind::Split, &[Lost, Torn, Structure, Recovery],
        "a consolidation or split puts a node into the tree that is not durable"),
    plant("bztree-epoch-kept", 8, "bztree-256-u64", Kind::Split, &[Structure],
        "entries that were reserved before a crash are reserved after it").with_threads(),
    plant("bztree-no-help", 21, "bztree-256-u64", Kind::Split, &[Progress],
        "a thread that meets a frozen leaf waits for another to finish it"),
    plant("bztree-frozen-refused", 21, "bztree-256-u64", Kind::Split, &[Progress],
        "an operation that meets a frozen leaf fails"),
    plant("bztree-duplicate-unseen", 22, "bztree-256-u64", Kind::Mixed, &[FaultKind::Wrong, Structure, Torn, Lost],
        "an insertion does not look at entries that were reserved before its own").with_threads(),
    plant("bztree-duplicate-inserted", 22, "bztree-256-u64", Kind::Mixed, &[FaultKind::Wrong, Torn, Lost],
        "an insertion that finds its key late says that it inserted it").with_threads(),
    plant("bztree-upsert-in-two", 22, "bztree-256-u64", Kind::Mixed, &[FaultKind::Wrong, Torn, Lost],
        "an upsert looks first, and acts on that later").with_threads(),
    plant("fastfair-key-first", 1, "fastfair-256-u64", Kind::Split, &[Torn, Lost, Structure, Recovery],
        "an insertion gives an entry its new key before its new value"),
    plant("fastfair-link-first", 2, "fastfair-256-u64", Kind::Split, &[Lost, Structure, Recovery, Torn],
        "a split links the new node in before it is durable"),
    plant("fastfair-wrong-way", 4, "fastfair-256-u64", Kind::Merge, &[Lost, Structure, Recovery, Torn],
        "a removal flushes a line when it is begun, as an insertion does, rather than when it is complete"),
    plant("fastfair-root-first", 10, "fastfair-256-u64", Kind::Dense, &[Lost, Structure, Recovery],
        "a new root is published before its right child is the left one's sibling"),
    plant("fastfair-parent-first", 10, "fastfair-256-u64-high", Kind::Split, &[Lost, Structure, Recovery],
        "a split makes the new node a child before it is a sibling"),
    plant("fastfair-cut-first", 11, "fastfair-256-u64", Kind::Split, &[Lost],
        "a split cuts the upper half off before its sibling is linked in"),
    plant("fastfair-duplicate-kept", 12, "fastfair-256-u64", Kind::Merge, &[Structure],
        "recovery overlooks the duplicate that an interrupted shift left"),
    plant("fastfair-unordered", 13, "fastfair-256-u64", Kind::Split, &[Lost, Torn, Structure, Recovery],
        "the stores of a shift are not ordered inside a line").under(Model::ArmV8),
    plant("fastfair-unordered-sp", 13, "fastfair-sp-256-u64", Kind::Split, &[Lost, Torn, Structure, Recovery],
        "the same under inner nodes in DRAM").under(Model::ArmV8),
    plant("pool-size-first", 15, "pool-regions", Kind::Upkeep, &[Recovery],
        "the superblock says that a region exists before it has a chunk table"),
    plant("pool-cut-first", 15, "pool", Kind::Upkeep, &[Recovery],
        "the file is cut before the superblock says so"),
    plant("lbtree-free-first", 18, "lbtree-256-bytes", Kind::Update, &[Lost, Structure, Recovery, Torn],
        "a record is free before the word that leads to it is replaced"),
    plant("pool-release-first", 18, "pool", Kind::Drain, &[Recovery],
        "a root's chunks are free before the root is unpublished"),
    plant("pool-release-lost", 18, "pool", Kind::Update, &[Leak, Progress],
        "chunks are given back without their words being cleared"),
    plant("pool-unowned-kept", 18, "pool", Kind::Drain, &[Leak],
        "opening does not free the chunks of roots that were never published"),
    plant("pool-kill-forgotten", 24, "pool", Kind::Drain, &[Lost, FaultKind::Phantom, Torn, Structure, Leak, Recovery],
        "what a killed process left in the caches is not written back before the next one relies on it").after_a_kill(),
    plant("pool-closed-unkept", 24, "pool", Kind::Upkeep, &[Recovery],
        "the superblock of a process that was killed while it closed is not written back before its other copy changes").after_a_kill(),
    #[cfg(feature = "unproven")]
    plant("store-rename-in-two", 11, "store-lbtree-256", Kind::Update, &[Torn],
        "a keyspace loses its old name in one commit and gets the new one in the next"),
    #[cfg(feature = "unproven")]
    plant("store-feed-at-once", 14, "store-lbtree-256-watched", Kind::Mixed, &[FaultKind::Wrong],
        "a watch gives a change as soon as it is made").with_threads(),
    #[cfg(feature = "unproven")]
    plant("store-feed-begins-early", 22, "store-lbtree-256-watched", Kind::Mixed, &[FaultKind::Wrong],
        "a watch begins without waiting for what was committed before it to be durable").with_threads(),
];
