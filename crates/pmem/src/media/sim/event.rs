//! Events that a traced medium reports.

use std::any::Any;
use std::panic::Location;

/// One access to persistent memory, or one instruction that orders them.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// The kind of the event.
    pub kind: EventKind,
    /// The simulated thread that did it.
    pub thread: u8,
    /// The place in the source that did it.
    pub site: &'static Location<'static>,
}

/// The kind of an event. Places are byte offsets in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// `bytes` were read at `at`.
    Load {
        /// First byte.
        at: u64,
        /// How many.
        bytes: u32,
    },
    /// One aligned 8-byte word was replaced.
    Store {
        /// The word's place.
        at: u64,
        /// The old content.
        old: u64,
        /// The new content.
        new: u64,
    },
    /// One aligned 16-byte word was replaced by one instruction.
    Store16 {
        /// The word's place.
        at: u64,
        /// The old content.
        old: u128,
        /// The new content.
        new: u128,
    },
    /// One line was written back; one event per line.
    Flush {
        /// The line's place.
        line: u64,
    },
    /// Earlier flushes of the thread are durable before its later stores.
    Fence,
    /// Earlier stores of the thread come before its later ones.
    StoreFence,
    /// The pool's length was changed.
    Resize {
        /// Bytes before.
        from: u64,
        /// Bytes after.
        to: u64,
    },
    /// A range was punched and reads as zero.
    Zero {
        /// First byte.
        at: u64,
        /// How many.
        bytes: u64,
    },
}

/// Takes events as they happen. It must not touch the simulation that calls it.
pub trait Sink {
    /// Takes one event. A store is reported before it is made.
    fn event(&mut self, event: &Event);

    /// Returns the sink itself, for the caller that set it.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

/// A sink that keeps everything but loads.
#[derive(Debug, Default)]
pub struct Trace {
    /// The events, in the order of the simulated interleaving.
    pub events: Vec<Event>,
}

impl Sink for Trace {
    fn event(&mut self, event: &Event) {
        if !matches!(event.kind, EventKind::Load { .. }) {
            self.events.push(*event);
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// The kind of instruction at a site, for switching it off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SiteKind {
    /// A flush.
    Flush,
    /// A fence.
    Fence,
    /// A store fence.
    StoreFence,
}

impl SiteKind {
    /// Returns the kind's name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Flush => "flush",
            Self::Fence => "fence",
            Self::StoreFence => "store fence",
        }
    }

    /// Returns the kind of instruction that an event is, if it is one that orders.
    #[must_use]
    pub fn of(kind: &EventKind) -> Option<Self> {
        match kind {
            EventKind::Flush { .. } => Some(Self::Flush),
            EventKind::Fence => Some(Self::Fence),
            EventKind::StoreFence => Some(Self::StoreFence),
            _ => None,
        }
    }
}

/// A flush, fence or store fence in the source, however often it was compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// Source file.
    pub file: &'static str,
    /// Line in it.
    pub line: u32,
    /// Column in it.
    pub column: u32,
    /// The kind of instruction.
    pub kind: SiteKind,
}

impl Site {
    /// Returns the site of an instruction.
    #[must_use]
    pub fn new(at: &'static Location<'static>, kind: SiteKind) -> Self {
        Self {
            file: at.file(),
            line: at.line(),
            column: at.column(),
            kind,
        }
    }

    fn is(&self, at: &'static Location<'static>, kind: SiteKind) -> bool {
        self.kind == kind
            && self.line == at.line()
            && self.column == at.column()
            && self.file == at.file()
    }

    /// Returns true if one of `sites` is the instruction of `kind` at `at`.
    pub(super) fn any(sites: &[Self], at: &'static Location<'static>, kind: SiteKind) -> bool {
        sites.iter().any(|site| site.is(at, kind))
    }
}

impl std::fmt::Display for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}:{}:{} ({})",
            self.file,
            self.line,
            self.column,
            self.kind.name()
        )
    }
}
