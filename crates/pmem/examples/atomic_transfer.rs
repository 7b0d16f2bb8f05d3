//! Money moves between two persistent accounts, by two threads, while the process is killed again
//! and again.
//!
//! ```sh
//! cargo run --release -p bristlecone-pmem --example atomic_transfer
//! ```
//!
//! `TMPDIR` decides where the pool is: on an ordinary disk transfers go through a journal, on
//! `/dev/shm` or persistent memory straight to the mapped file.
//!
//! A transfer changes three words of a pool file with one persistent multi-word compare-and-swap:
//! both accounts and the number of transfers. A child process makes transfers with two threads
//! until it is killed at a random moment. Then the parent opens the pool, which ends or undoes
//! transfers under way, and checks that the sum is unchanged and that every transfer that the child
//! had reported is there.

use bristlecone_pmem::media::Auto;
use bristlecone_pmem::pmwcas::{DescriptorPool, NoBlocks, Recovered};
use bristlecone_pmem::pool::{DataKind, Root, RootKind};
use bristlecone_pmem::{Media, PWord, Pool, PoolOptions};
use crossbeam_epoch as epoch;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

type Outcome<T> = Result<T, Box<dyn Error>>;

const ROUNDS: u64 = 10;
/// The sum of both accounts.
const SUM: u64 = 1_000_000;
const THREADS: u64 = 2;
const NAME: &str = "accounts";
/// Root words: places of descriptors and accounts.
const DESCRIPTORS: usize = 0;
const ACCOUNTS: usize = 1;
const LINE: u64 = 64;
/// Two accounts and the number of transfers, each in a line of its own.
const BYTES: u64 = 3 * LINE;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.first() {
        Some(path) => transfer(Path::new(path)),
        None => parent(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("atomic_transfer: {e}");
            ExitCode::FAILURE
        }
    }
}

/// The open pool.
struct Bank {
    // The descriptors come before the root and the pool, which they use.
    swaps: DescriptorPool<Auto>,
    accounts: u64,
    root: Root<Auto>,
    pool: Arc<Pool<Auto>>,
}

fn kind() -> RootKind {
    RootKind {
        design: "atomic-transfer".into(),
        keys: DataKind::U64,
        values: DataKind::U64,
        node_bytes: BYTES as u32,
    }
}

impl Bank {
    fn create(path: &Path) -> Outcome<Self> {
        let pool = Pool::<Auto>::create(path, &PoolOptions::default())?;
        let root = pool.create_root(NAME, &kind())?;
        let heap = root.heap();
        let swaps = DescriptorPool::create(&heap, THREADS as usize, 16, 3, Box::new(NoBlocks))?;
        let accounts = heap.alloc(BYTES)?.get();
        let bank = Self {
            swaps,
            accounts,
            root,
            pool,
        };
        let pm = bank.pool.pm();
        for (i, value) in [SUM, 0, 0].into_iter().enumerate() {
            // ORDERING (all): Relaxed; nothing leads here yet.
            bank.word(i).store(pm, value, Ordering::Relaxed);
            // PERSIST: the accounts; fenced when the root is published.
            pm.flush_of(bank.word(i));
        }
        for (i, at) in [(DESCRIPTORS, bank.swaps.offset()), (ACCOUNTS, accounts)] {
            bank.root.word(i).store(pm, at, Ordering::Relaxed);
            // PERSIST: the words that lead to the accounts; fenced when the root is published.
            pm.flush_of(bank.root.word(i));
        }
        bank.root.publish();
        pm.commit()?;
        Ok(bank)
    }

    fn open(path: &Path) -> Outcome<(Self, Recovered)> {
        let pool = Pool::<Auto>::open(path, &PoolOptions::default())?;
        let root = pool.open_root(NAME, Some(&kind()))?;
        let heap = root.heap();
        heap.begin_recovery();
        // ORDERING: Relaxed; no other thread has the pool.
        let at = |i| root.word(i).load(pool.pm(), Ordering::Relaxed);
        let (descriptors, accounts) = (at(DESCRIPTORS), at(ACCOUNTS));
        heap.check(accounts, BYTES)?;
        let (swaps, recovered) = DescriptorPool::open(&heap, descriptors, Box::new(NoBlocks))?;
        let guard = epoch::pin();
        swaps.mark(&heap, &guard)?;
        heap.mark(accounts, BYTES, &guard)?;
        heap.finish_recovery();
        let bank = Self {
            swaps,
            accounts,
            root,
            pool,
        };
        for i in 0..3 {
            bank.swaps.check(bank.word(i))?;
        }
        Ok((bank, recovered))
    }

    /// Returns the accounts (0 and 1), and the number of transfers (2).
    fn word(&self, i: usize) -> &PWord {
        let at = self.accounts as usize + i * LINE as usize;
        // SAFETY: 1. the block was allocated or checked, with a line for each of three words; 2.
        // lines are 8-aligned; 3. any bits are a valid PWord; 4. the mapping lives as long as the
        // pool.
        unsafe { &*self.pool.pm().base().wrapping_add(at).cast_const().cast() }
    }

    fn read(&self) -> [u64; 3] {
        [0, 1, 2].map(|i| self.swaps.read(self.word(i)))
    }

    /// Moves up to `most`, mostly from the richer account. Returns the number of the transfer,
    /// which is durable.
    fn transfer(&self, most: u64) -> Outcome<u64> {
        loop {
            let mut swap = self.swaps.allocate_descriptor()?;
            let [a, b, count] = self.read();
            // If threads meet, the reads may belong to different moments; the swap fails then.
            let amount = most.min(a.max(b));
            let (a_after, b_after) = if a >= b {
                (a - amount, b + amount)
            } else {
                (a + amount, b - amount)
            };
            swap.add_word(self.word(0), a, a_after)?;
            swap.add_word(self.word(1), b, b_after)?;
            swap.add_word(self.word(2), count, count + 1)?;
            if swap.execute()? {
                // On an ordinary disk, durable means that the journal has it.
                self.pool.pm().commit()?;
                return Ok(count + 1);
            }
        }
    }
}

/// The child: transfers until it is killed, and prints how many transfers are durable.
fn transfer(path: &Path) -> Outcome<()> {
    let (bank, _) = Bank::open(path)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let bank = &bank;
                scope.spawn(move || -> Result<(), String> {
                    for n in thread.. {
                        let done = bank
                            .transfer(1 + n * 7919 % 1000)
                            .map_err(|e| e.to_string())?;
                        // The line is short and so is written whole. If it cannot be written, the
                        // transfer is not reported.
                        let _ = std::io::stdout().write_all(format!("{done}\n").as_bytes());
                    }
                    Ok(())
                })
            })
            .collect();
        for thread in threads {
            thread.join().map_err(|_| "a thread panicked")??;
        }
        Ok(())
    })
}

fn parent() -> Outcome<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("bank.pool");
    let bank = Bank::create(&path)?;
    let info = bank.pool.info();
    println!(
        "{SUM} in two accounts, in {} (medium {}, survives {})",
        path.display(),
        info.medium.name(),
        info.medium.survives()
    );
    drop(bank);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let mut random = u64::from(now.subsec_nanos()) | 1;
    println!("  kill  after ms  reported  durable   account 0  account 1  rolled forward  back");
    for round in 1..=ROUNDS {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let after = Duration::from_micros(20_000 + (random >> 40) % 180_000);
        let mut child = Command::new(std::env::current_exe()?)
            .arg(&path)
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take().ok_or("the child has no output")?;
        let listener = std::thread::spawn(move || {
            let lines = BufReader::new(out).lines().map_while(Result::ok);
            lines
                .filter_map(|line| line.parse::<u64>().ok())
                .max()
                .unwrap_or(0)
        });
        std::thread::sleep(after);
        if let Some(ended) = child.try_wait()? {
            return Err(format!("the child ended by itself: {ended}").into());
        }
        child.kill()?;
        child.wait()?;
        let reported = listener.join().map_err(|_| "the listener panicked")?;
        let (bank, recovered) = Bank::open(&path)?;
        let [a, b, count] = bank.read();
        println!(
            "  {round:4}  {:8}  {reported:8}  {count:7}  {a:10} {b:10}  {:14}  {:4}",
            after.as_millis(),
            recovered.forward,
            recovered.back
        );
        if a + b != SUM {
            return Err(format!("{a} and {b} are {}, not {SUM}", a + b).into());
        }
        if count < reported {
            return Err(format!("{reported} transfers were reported, {count} are there").into());
        }
    }
    println!("{ROUNDS} kills: the sum is {SUM}, and no reported transfer is missing");
    Ok(())
}
