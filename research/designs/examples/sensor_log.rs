//! Readings of several sensors, written by several threads, backed up while they are being written.
//!
//! ```sh
//! cargo run --release -p bristlecone-designs --example sensor_log -- /path/to/new.pool
//! ```
//!
//! Run it again on the same path: it continues where it stopped, killed or not.

use bristlecone_designs::{DurableIndex, LbOptions, LbTree, OrderedIndex, ReverseScan, TreeError};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{OpenError, Pool, PoolOptions};
use std::error::Error;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Sensor in the upper 16 bits, number of the reading in the lower 48.
type Readings = LbTree<u64, u64, Auto, 1>;

const SENSORS: u64 = 4;
const READINGS: u64 = 5_000;

fn key(sensor: u64, reading: u64) -> u64 {
    sensor << 48 | reading
}

fn main() -> Result<(), Box<dyn Error>> {
    let scratch = tempfile::tempdir()?;
    let path = match std::env::args_os().nth(1) {
        Some(path) => PathBuf::from(path),
        None => scratch.path().join("readings.pool"),
    };
    let pool = match Pool::open(&path, &PoolOptions::default()) {
        Err(OpenError::NotFound(_)) => Pool::create(&path, &PoolOptions::default())?,
        opened => opened?,
    };
    let info = pool.info();
    println!(
        "{}: {}, survives {}",
        path.display(),
        info.medium.name(),
        info.medium.survives()
    );
    let readings = match Readings::open(&pool, "readings", &LbOptions::default()) {
        Err(TreeError::Root(bristlecone_pmem::pool::RootError::NotFound(_))) => {
            Readings::create(&pool, "readings", &LbOptions::default())?
        }
        opened => opened?,
    };
    println!("{:?}", readings.recovery());

    std::thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        let writers: Vec<_> = (0..SENSORS)
            .map(|sensor| {
                let readings = &readings;
                scope.spawn(move || {
                    // Continue after this sensor's last reading: the largest key below the next
                    // sensor's.
                    let mut next = 0;
                    readings.scan_reverse(key(sensor, 0)..key(sensor + 1, 0), |key, _| {
                        next = (key & ((1 << 48) - 1)) + 1;
                        ControlFlow::Break(())
                    });
                    let mut results = Vec::new();
                    for start in (next..next + READINGS).step_by(500) {
                        let batch: Vec<(u64, u64)> = (start..start + 500)
                            .map(|i| (key(sensor, i), i * i % 977))
                            .collect();
                        // When the call returns, all of them are durable, with one commit for the
                        // batch.
                        readings.multi_insert(&batch, &mut results);
                        for result in results.drain(..) {
                            result?;
                        }
                    }
                    Ok::<u64, bristlecone_designs::InsertError>(next + READINGS)
                })
            })
            .collect();
        let copy = scratch.path().join("copy.pool");
        let bytes = pool.backup(&copy)?;
        println!("backed up {bytes} bytes while the writers were at work");
        for (sensor, writer) in writers.into_iter().enumerate() {
            let end = writer.join().map_err(|_| "a writer stopped")??;
            println!("sensor {sensor}: {end} readings");
        }
        let copy = Pool::<Auto>::open(&copy, &PoolOptions::default())?;
        let copied = Readings::open(&copy, "readings", &LbOptions::default())?;
        println!(
            "the copy has {} of them and verifies",
            copied.verify()?.entries
        );
        Ok(())
    })?;
    println!("{} readings in all", readings.verify()?.entries);
    readings.close()?;
    Ok(())
}
