//! Memcached clients of a database that has no room left.

use crate::live::Live;
use crate::memcached::{Client, with_memcached};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{MediumKind, Pool, PoolOptions};
use bristlecone_store::{Store, StoreOptions};
use std::time::{Duration, Instant};

/// Returns a server over a pool of 8 MiB in memory.
fn small() -> Live {
    let mut options = PoolOptions::default();
    options.media.medium = Some(MediumKind::Dram);
    options.media.reserve = 8 << 20;
    let pool = Pool::<Auto>::create("small".as_ref(), &options).unwrap();
    let store = Store::create(&pool, "store", &StoreOptions::default()).unwrap();
    Live::over(store, with_memcached())
}

/// Stores 200 items, named by numbers from `number` up. Returns how many more there are now.
fn store_more(client: &mut Client, value: &str, number: &mut u64) -> u64 {
    let before = client.stat("curr_items");
    for _ in 0..200 {
        client.tells(&format!(
            "set k{number} 0 0 {} noreply|{value}",
            value.len()
        ));
        *number += 1;
    }
    client.stat("curr_items") - before
}

/// Stores items until none is taken any more. Returns how many it tried.
fn fill(client: &mut Client, value: &str) -> u64 {
    let (mut number, mut refused) = (0, 0);
    while refused < 5 {
        refused += u32::from(store_more(client, value, &mut number) == 0);
        assert!(number < 1_000_000, "it never fills up");
    }
    assert!(client.stat("curr_items") > 1_000);
    number
}

#[test]
fn after_a_flush_there_is_room_again() {
    let mut full = false;
    // One of the first two sizes nearly always fills all. On a busy machine the reclaimer can keep
    // a page free throughout: then others are tried.
    for bytes in [8, 300, 100, 12, 200, 50, 400, 25] {
        let live = small();
        let mut client = Client::of(&live);
        let value = "v".repeat(bytes);
        let mut number = fill(&mut client, &value);
        // Until there is not even room for the record of a flush. Items take what the reclaimer
        // frees meanwhile.
        let has_room = |client: &mut Client| client.asks("flush_all 100000") == "OK";
        for _ in 0..5 {
            full |= !(0..100).all(|_| has_room(&mut client));
            if full {
                break;
            }
            store_more(&mut client, &value, &mut number);
        }
        client.says("flush_all|get k0 k1 k2 k3", "OK|END");
        let until = Instant::now() + Duration::from_secs(30);
        while client.stat("curr_items") > 0 {
            assert!(Instant::now() < until, "what was flushed stays");
            std::thread::sleep(Duration::from_millis(20));
        }
        fill(&mut client, &value);
        if full && bytes != 8 {
            break;
        }
    }
    assert!(full, "no flush with a delay was refused");
}
