//! YCSB's workload E on a store: 95 % scans of 1 to 100 entries from a Zipfian key on, 5 %
//! insertions.
//!
//! ```text
//! cargo run --release -p bristlecone-store --example ycsb_e -- /dev/shm/pool [DESIGN [RECORDS [SECONDS]]]
//! ```
//!
//! Makes a new pool, with a million records by default: keys of 23 bytes, values of 100. Scans copy
//! every key and value. Prints operations and entries of one thread per second, and per second of
//! processor time, which other work on the machine affects less.

use bristlecone_designs::engines::NVTREE;
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_store::{EngineKind, Keyspace, LbEngine, Store, StoreOptions};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::error::Error;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

const VALUE: usize = 100;
const LONGEST: usize = 100;
/// Skew of YCSB's Zipfian keys.
const THETA: f64 = 0.99;

/// Zipfian ranks from 0, the lower the more likely (Gray et al., "Quickly generating billion-record
/// synthetic databases").
struct Zipf {
    n: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    fn new(n: u64) -> Self {
        let zeta = |n: u64| (1..=n).map(|i| (i as f64).powf(-THETA)).sum::<f64>();
        let (two, all) = (zeta(2), zeta(n));
        let n = n as f64;
        let eta = (1.0 - (2.0 / n).powf(1.0 - THETA)) / (1.0 - two / all);
        Self { n, zeta: all, eta }
    }

    fn next(&self, rng: &mut SmallRng) -> u64 {
        let u: f64 = rng.random();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(THETA) {
            return 1;
        }
        (self.n * (self.eta * u - self.eta + 1.0).powf(1.0 / (1.0 - THETA))) as u64
    }
}

/// Returns the key of a record: its number, scrambled as YCSB does.
fn key(number: u64) -> String {
    let mut mixed = (number ^ number >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    format!("user{:019}", (mixed ^ mixed >> 32) >> 1)
}

/// Returns the seconds of processor time of this thread; `None` where the system does not tell.
fn processor_time() -> Option<f64> {
    let line = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds: u64 = line.split(' ').next()?.parse().ok()?;
    Some(nanoseconds as f64 / 1e9)
}

fn load(store: &Store<Auto>, k: &Keyspace, records: u64) -> Result<(), Box<dyn Error>> {
    for first in (0..records).step_by(256) {
        let keys: Vec<String> = (first..records.min(first + 256)).map(key).collect();
        let puts: Vec<(&[u8], [u8; VALUE])> = (keys.iter())
            .map(|key| (key.as_bytes(), [key.as_bytes()[22]; VALUE]))
            .collect();
        let put = store.multi_put(k, &puts, |_| true)?;
        assert_eq!(put, puts.len(), "keys differ");
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = PathBuf::from(args.next().ok_or("the pool's path is missing")?);
    let design = args.next().unwrap_or_else(|| "lbtree".into());
    let records: u64 = args.next().map_or(Ok(1_000_000), |n| n.parse())?;
    let seconds: u64 = args.next().map_or(Ok(5), |n| n.parse())?;
    let pool: Arc<Pool<Auto>> = Pool::create(&path, &PoolOptions::default())?;
    let kind: &dyn EngineKind<Auto> = match design.as_str() {
        "lbtree" => &LbEngine,
        "nvtree" => &NVTREE,
        _ => return Err(format!("{design} is neither lbtree nor nvtree").into()),
    };
    let store = Store::create_with(&pool, "s", &StoreOptions::default(), kind)?;
    let k = store.keyspace("usertable")?;
    load(&store, &k, records)?;

    let zipf = Zipf::new(records);
    let mut rng = SmallRng::seed_from_u64(1);
    let (mut next, mut operations, mut entries) = (records, 0u64, 0u64);
    let mut out = Vec::new();
    let (begun, had) = (Instant::now(), processor_time());
    while begun.elapsed() < Duration::from_secs(seconds) {
        for _ in 0..100 {
            operations += 1;
            if rng.random_range(0..100) < 5 {
                store.put(&k, key(next).as_bytes(), &[b'n'; VALUE])?;
                next += 1;
                continue;
            }
            let start = key(zipf.next(&mut rng)).into_bytes();
            let most = rng.random_range(1..=LONGEST);
            let mut left = most;
            out.clear();
            store.snapshot().scan(&k, start.., |key, entry| {
                out.extend_from_slice(key);
                out.extend_from_slice(entry.value);
                left -= 1;
                if left == 0 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })?;
            entries += (most - left) as u64;
        }
    }
    let took = begun.elapsed().as_secs_f64();
    let rates = |seconds: f64| {
        let (operations, entries) = (operations as f64 / 1e3, entries as f64 / 1e6);
        format!(
            "{:.1} k operations, {:.2} M entries",
            operations / seconds,
            entries / seconds
        )
    };
    println!("{design}, a second: {}", rates(took));
    if let (Some(had), Some(has)) = (had, processor_time()) {
        println!("of processor time: {}", rates(has - had));
    }
    drop(store);
    drop(pool);
    std::fs::remove_file(path)?;
    Ok(())
}
