//! Persistency models: which stores a crash may lose.
//!
//! Stores that are not guaranteed to be durable are *pending*. They are kept per *domain*: the unit
//! inside which a model orders them.
//!
//! | model | domain | order inside it | a store is durable when |
//! | --- | --- | --- | --- |
//! | `x86-tso` | cache line | program order | its line was flushed after it and the flusher fenced |
//! | `armv8` | cache line | only across store fences and fences | the same |
//! | `eadr` | a thread's store buffer | program order | its thread fenced, or another one saw or replaced it |
//!
//! Order is by *epoch*: a crash keeps all stores of a domain before some epoch, none after it, and
//! any subset of that epoch's own (per word, a prefix). Under total store order each store is an
//! epoch of its own, but for the halves of a 16-byte store where only 8 bytes are failure-atomic.
//!
//! # Limits
//! Locked instructions and acquire/release order nothing here, though they do on processors; the
//! model is stricter than those. A pool's length changes at once and durably. On `armv8` a store
//! fence separates the epochs of all threads; within a line that two threads write without a fence
//! between them, that is more order than the architecture promises.

use super::event::{Event, EventKind, SiteKind};
use crate::media::LINE;
use std::collections::BTreeMap;
use std::panic::Location;

/// A persistency model (`docs/design.md`, "Media").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Model {
    /// Stores to one line persist in program order; lines in any order until flushed and fenced.
    X86Tso,
    /// Stores to one line may reorder too unless a store fence lies between.
    ArmV8,
    /// Every globally visible store is durable; what is in a store buffer is not.
    Eadr,
}

impl Model {
    /// All models.
    pub const ALL: [Self; 3] = [Self::X86Tso, Self::ArmV8, Self::Eadr];

    /// Returns the name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::X86Tso => "x86-tso",
            Self::ArmV8 => "armv8",
            Self::Eadr => "eadr",
        }
    }

    /// Returns true if an instruction of `kind` has an effect: flushes have none where caches are
    /// durable, and store fences none where stores to a line keep their order anyway.
    #[must_use]
    pub fn orders(self, kind: SiteKind) -> bool {
        match self {
            Self::X86Tso => kind != SiteKind::StoreFence,
            Self::ArmV8 => true,
            Self::Eadr => kind == SiteKind::Fence,
        }
    }

    /// Returns the model of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|model| model.name() == name)
    }
}

/// A store that a crash may lose.
#[derive(Clone, Copy, Debug)]
pub struct PendingStore {
    /// The word (byte offset / 8).
    pub word: u32,
    /// The value stored.
    pub value: u64,
    /// Epoch in its domain; from 1 on.
    pub epoch: u32,
    /// Number of the 16-byte store of which this is an inseparable half; 0 for none.
    pub pair: u32,
    /// Place in the order of all stores.
    pub seq: u32,
    /// The thread that stored.
    pub thread: u8,
    /// The call site of the store.
    pub site: &'static Location<'static>,
}

/// All stores that a crash may lose, at one point of a trace.
#[derive(Clone, Debug)]
pub struct Pending {
    model: Model,
    /// Bytes that the medium writes as one: 8 or 16.
    unit: u8,
    epoch: u32,
    seq: u32,
    domains: BTreeMap<u32, Vec<PendingStore>>,
    /// Per thread: lines that it flushed since its last fence, and up to which store.
    flushed: Vec<Vec<(u32, u32)>>,
}

/// Returns the line of a word.
#[must_use]
pub fn line_of(word: u32) -> u32 {
    word / (LINE / 8) as u32
}

impl Pending {
    /// Returns an instance with nothing pending. `unit` is the failure-atomic unit in bytes: 16 for
    /// a design that declares it, else 8.
    #[must_use]
    pub fn new(model: Model, unit: u8) -> Self {
        Self {
            model,
            unit,
            epoch: 1,
            seq: 0,
            domains: BTreeMap::new(),
            flushed: Vec::new(),
        }
    }

    /// Returns the stores of each domain, in the order in which they were made.
    pub fn domains(&self) -> impl Iterator<Item = &[PendingStore]> {
        self.domains.values().map(Vec::as_slice)
    }

    /// Returns the number of the last store.
    #[must_use]
    pub fn newest(&self) -> u32 {
        self.seq
    }

    /// Returns true if a crash loses nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// Kills the process: what is pending stays so, and no fence of a later process waits for the
    /// flushes that it had begun.
    pub fn kill(&mut self) {
        self.flushed.clear();
    }

    /// Applies the effect of an event. Passes words that become durable to `durable`, in order.
    pub fn apply(&mut self, event: &Event, durable: &mut dyn FnMut(u32, u64)) {
        if self.model == Model::Eadr {
            self.leave_buffers(event, durable);
        }
        match event.kind {
            EventKind::Load { .. } | EventKind::Resize { .. } => {}
            EventKind::Store { at, old, new } => {
                if self.model != Model::ArmV8 {
                    self.epoch += 1;
                }
                self.push((at / 8) as u32, old, new, 0, event);
            }
            EventKind::Store16 { at, old, new } => {
                if self.model != Model::ArmV8 {
                    self.epoch += 1;
                }
                // A half that does not change is kept with the other: what was there is older.
                let whole = self.unit >= 16 && old != new;
                let pair = if whole { self.seq + 1 } else { 0 };
                let word = (at / 8) as u32;
                self.push(word, old as u64, new as u64, pair, event);
                self.push(
                    word + 1,
                    (old >> 64) as u64,
                    (new >> 64) as u64,
                    pair,
                    event,
                );
            }
            EventKind::Flush { .. } if self.model == Model::Eadr => {}
            EventKind::Flush { line } => {
                let line = (line / LINE as u64) as u32;
                let seq = self.seq;
                self.flushed_by(event.thread).push((line, seq));
            }
            EventKind::StoreFence => self.epoch += 1,
            EventKind::Fence => {
                self.epoch += 1;
                if self.model == Model::Eadr {
                    self.drain(u32::from(event.thread), u32::MAX, durable);
                } else {
                    for (line, seq) in std::mem::take(self.flushed_by(event.thread)) {
                        self.drain(line, seq, durable);
                    }
                }
            }
            EventKind::Zero { at, bytes } => {
                // The range is durably zero; nothing pending there can come back.
                let range = (at / 8) as u32..((at + bytes) / 8) as u32;
                self.domains.retain(|_, stores| {
                    stores.retain(|store| !range.contains(&store.word));
                    !stores.is_empty()
                });
            }
        }
    }

    /// Removes a store that another thread reads or overwrites from its store buffer, with all
    /// stores that were in there before it.
    fn leave_buffers(&mut self, event: &Event, durable: &mut dyn FnMut(u32, u64)) {
        let (at, bytes) = match event.kind {
            EventKind::Load { at, bytes } => (at, u64::from(bytes)),
            EventKind::Store { at, .. } => (at, 8),
            EventKind::Store16 { at, .. } => (at, 16),
            _ => return,
        };
        let words = (at / 8) as u32..(at + bytes).div_ceil(8) as u32;
        let thread = u32::from(event.thread);
        let others = self.domains.iter().filter(|(of, _)| **of != thread);
        let left: Vec<(u32, u32)> = others
            .filter_map(|(of, stores)| {
                let met = stores.iter().rfind(|store| words.contains(&store.word))?;
                // Both halves of a 16-byte store leave at once.
                let last = stores.iter().rfind(|store| store.epoch == met.epoch)?;
                Some((*of, last.seq))
            })
            .collect();
        for (of, seq) in left {
            self.drain(of, seq, durable);
        }
    }

    fn flushed_by(&mut self, thread: u8) -> &mut Vec<(u32, u32)> {
        let thread = usize::from(thread);
        if self.flushed.len() <= thread {
            self.flushed.resize(thread + 1, Vec::new());
        }
        &mut self.flushed[thread]
    }

    fn push(&mut self, word: u32, old: u64, new: u64, pair: u32, event: &Event) {
        self.seq += 1;
        if old == new && pair == 0 {
            return; // a crash cannot tell
        }
        let domain = if self.model == Model::Eadr {
            u32::from(event.thread)
        } else {
            line_of(word)
        };
        self.domains.entry(domain).or_default().push(PendingStore {
            word,
            value: new,
            epoch: self.epoch,
            pair,
            seq: self.seq,
            thread: event.thread,
            site: event.site,
        });
    }

    /// Makes the stores of `domain` up to number `seq` durable.
    fn drain(&mut self, domain: u32, seq: u32, durable: &mut dyn FnMut(u32, u64)) {
        let Some(stores) = self.domains.get_mut(&domain) else {
            return;
        };
        let n = stores.partition_point(|store| store.seq <= seq);
        for store in stores.drain(..n) {
            durable(store.word, store.value);
        }
        if stores.is_empty() {
            self.domains.remove(&domain);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn event(thread: u8, kind: EventKind) -> Event {
        Event {
            kind,
            thread,
            site: Location::caller(),
        }
    }

    fn store(thread: u8, word: u64, new: u64) -> Event {
        let (at, old) = (word * 8, 0);
        event(thread, EventKind::Store { at, old, new })
    }

    /// Returns the stores that became durable, in order.
    fn run(model: Model, events: &[Event]) -> (Pending, Vec<(u32, u64)>) {
        let mut pending = Pending::new(model, 8);
        let mut durable = Vec::new();
        for event in events {
            pending.apply(event, &mut |word, value| durable.push((word, value)));
        }
        (pending, durable)
    }

    #[test]
    fn a_line_is_durable_when_its_flusher_has_fenced_whoever_stored() {
        let flush = event(2, EventKind::Flush { line: 64 });
        let fence = |thread| event(thread, EventKind::Fence);
        let events = [store(1, 8, 5), flush, store(1, 9, 6), fence(1)];
        for model in [Model::X86Tso, Model::ArmV8] {
            let (mut pending, durable) = run(model, &events);
            assert_eq!(durable, [], "thread 1 flushed nothing");
            let mut durable = Vec::new();
            pending.apply(&fence(2), &mut |word, value| durable.push((word, value)));
            assert_eq!(durable, [(8, 5)], "what was stored after the flush is not");
        }
        let (pending, durable) = run(Model::Eadr, &events);
        assert_eq!(durable, [(8, 5), (9, 6)]);
        assert!(pending.is_empty());
    }

    #[test]
    fn a_kill_leaves_stores_pending_and_forgets_flushes() {
        for model in [Model::X86Tso, Model::ArmV8] {
            let flush = event(1, EventKind::Flush { line: 64 });
            let fence = event(1, EventKind::Fence);
            let (mut pending, _) = run(model, &[store(1, 8, 5), flush]);
            pending.kill();
            let mut durable = Vec::new();
            for event in [fence, store(1, 9, 6), flush] {
                pending.apply(&event, &mut |word, value| durable.push((word, value)));
            }
            assert_eq!(
                durable,
                [],
                "the next process has fenced nothing that it flushed"
            );
            pending.apply(&fence, &mut |word, value| durable.push((word, value)));
            assert_eq!(durable, [(8, 5), (9, 6)]);
        }
    }

    #[test]
    fn what_another_thread_sees_or_replaces_has_left_the_store_buffer() {
        let load = |thread| event(thread, EventKind::Load { at: 64, bytes: 8 });
        let buffered = [store(1, 3, 7), store(1, 8, 5), store(1, 9, 6)];
        let with = |last: Event| [&buffered[..], &[last]].concat();
        let (_, durable) = run(Model::Eadr, &with(load(2)));
        assert_eq!(durable, [(3, 7), (8, 5)], "and all before it");
        let (pending, durable) = run(Model::Eadr, &with(store(2, 8, 4)));
        assert_eq!(
            durable,
            [(3, 7), (8, 5)],
            "stores to a word keep their order"
        );
        assert_eq!(pending.domains().count(), 2);
        let (_, durable) = run(Model::Eadr, &with(load(1)));
        assert_eq!(durable, [], "a thread sees its own buffer");
        let (_, durable) = run(Model::X86Tso, &with(load(2)));
        assert_eq!(durable, [], "visible is not durable");
    }
}
