//! A pool created over an older pool, as on a device. A crash at any point leaves the old pool
//! unchanged, no pool, or the new pool.
//!
//! No workload's model knows the content of the old pool, so this module has an oracle of its own.

use bristlecone_pmem::media::Sim;
use bristlecone_pmem::media::sim::{Event, EventKind, Model, Pending, Simulation, Site, Strategy};
use bristlecone_pmem::pool::{DataKind, RootKind};
use bristlecone_pmem::{Media, OpenError, Pool, PoolOptions};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const BYTES: u64 = 4 << 20;
const ROOTS: [&str; 2] = ["one", "two"];
/// Largest number of images tried at a crash point.
const MAX_IMAGES: usize = 2_000;

type SimPool = Arc<Pool<Sim>>;

fn create() -> SimPool {
    Pool::create(Path::new("device"), &PoolOptions::default()).expect("room for a pool")
}

fn kind() -> RootKind {
    RootKind {
        design: "create-over".into(),
        keys: DataKind::U64,
        values: DataKind::U64,
        node_bytes: 0,
    }
}

/// Makes a pool with roots that own chunks, and closes it if `clean`. Returns its identity.
fn old_pool(sim: &Simulation, clean: bool) -> String {
    sim.set_len(BYTES);
    let pool = create();
    let made = id(&pool);
    for (i, name) in ROOTS.iter().enumerate() {
        let root = pool.create_root(name, &kind()).expect("a free slot");
        let heap = root.heap();
        heap.begin_recovery();
        heap.finish_recovery();
        let block = heap.alloc(64 << i).expect("room").get();
        // ORDERING: Relaxed; one thread.
        root.word(0).store(pool.pm(), block, Ordering::Relaxed);
        pool.pm().flush_of(root.word(0));
        root.publish();
    }
    sim.set_frozen(!clean);
    drop(pool);
    sim.set_frozen(false);
    made
}

/// Returns the identity of a pool.
fn id(pool: &SimPool) -> String {
    pool.info().uuid.to_string()
}

/// Opens the image that a crash left. Returns what is wrong with it, if anything.
fn fault_in_image(old: &str, new: &str, seen: &mut Seen) -> Option<String> {
    let pool = match Pool::<Sim>::open(Path::new("device"), &PoolOptions::default()) {
        Ok(pool) => pool,
        Err(OpenError::NotAPool { .. }) => {
            *seen.entry("none").or_default() += 1;
            return None;
        }
        Err(e) => return Some(e.to_string()),
    };
    if let Err(found) = pool.verify() {
        return Some(found.what);
    }
    let found = id(&pool);
    let (name, names) = if found == old {
        ("old", &ROOTS[..])
    } else if found == new {
        ("new", &[][..])
    } else {
        return Some(format!("{found} is neither {old} nor {new}"));
    };
    *seen.entry(name).or_default() += 1;
    let mut found: Vec<String> = pool.roots().into_iter().map(|root| root.name).collect();
    found.sort();
    if found != names {
        return Some(format!("the {name} pool has the roots {found:?}"));
    }
    for name in names {
        let root = pool.open_root(name, Some(&kind())).expect("it is there");
        let heap = root.heap();
        heap.begin_recovery();
        // ORDERING: Relaxed; one thread.
        let block = root.word(0).load(pool.pm(), Ordering::Relaxed);
        if let Err(e) = heap.check(block, 64) {
            return Some(format!("root {name}: {e}"));
        }
        heap.finish_recovery();
    }
    None
}

/// How often recoveries found which pool: "old", "none" or "new".
pub type Seen = BTreeMap<&'static str, u64>;

/// Explores every crash point of a creation over an old pool with some instructions switched off.
/// The old pool was closed cleanly if `clean`. Returns what recoveries found, and the trace of the
/// creation.
///
/// # Errors
/// A description of the first image that is wrong.
pub fn explore(model: Model, clean: bool, off: &[Site]) -> Result<(Seen, Vec<Event>), String> {
    let sim = Simulation::new(BYTES);
    let _attached = sim.attach();
    let old = old_pool(&sim, clean);
    sim.switch_off(off);
    sim.note_changes(true);
    let before = sim.mark();
    sim.start_trace();
    let pool = create();
    let events = sim.take_trace();
    let new = id(&pool);
    sim.set_frozen(true);
    drop(pool);
    sim.set_frozen(false);
    sim.roll_back(before);
    let mut seen = Seen::new();
    let mut pending = Pending::new(model, 8);
    for at in 0..=events.len() {
        if at > 0 {
            let event = &events[at - 1];
            sim.note_changes(false);
            pending.apply(event, &mut |word, value| sim.set_word(word, value));
            assert!(
                !matches!(
                    event.kind,
                    EventKind::Resize { .. } | EventKind::Zero { .. }
                ),
                "a device keeps its size: {event:?}"
            );
        }
        sim.note_changes(true);
        let start = sim.mark();
        let from = sim.expose(&pending, None);
        let opened = sim.mark();
        sim.set_strategy(Strategy::DepthFirst);
        for _ in 0..MAX_IMAGES {
            sim.begin_image(0);
            let found = fault_in_image(&old, &new, &mut seen);
            sim.roll_back(opened);
            if let Some(what) = found {
                let site = at.checked_sub(1).map(|i| events[i].site.to_string());
                return Err(format!("{model:?}, after event {at} ({site:?}): {what}"));
            }
            if !sim.next_image(0) {
                break;
            }
        }
        sim.roll_back(start);
        sim.close(from);
    }
    Ok((seen, events))
}
