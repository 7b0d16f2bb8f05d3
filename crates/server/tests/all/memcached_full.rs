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

/// Stores items until none is taken any more. Returns how many there are.
fn fill(client: &mut Client, value: &str) -> u64 {
    let (mut number, mut refused) = (0, 0);
    while refused < 5 {
        let before = client.stat("curr_items");
        for _ in 0..200 {
            client.tells(&format!(
                "set k{number} 0 0 {} noreply|{value}",
                value.len()
            ));
            number += 1;
        }
        refused += u32::from(client.stat("curr_items") == before);
        assert!(number < 1_000_000, "it never fills up");
    }
    client.stat("curr_items")
}

#[test]
fn after_a_flush_there_is_room_again() {
    let mut full = false;
    for bytes in [8, 300] {
        let live = small();
        let mut client = Client::of(&live);
        let value = "v".repeat(bytes);
        assert!(fill(&mut client, &value) > 1_000);
        // Until there is not even room for the record of a flush.
        let has_room = |client: &mut Client| client.asks("flush_all 100000") == "OK";
        full |= !(0..500).all(|_| has_room(&mut client));
        client.says("flush_all|get k0 k1 k2 k3", "OK|END");
        let until = Instant::now() + Duration::from_secs(30);
        while client.stat("curr_items") > 0 {
            assert!(Instant::now() < until, "what was flushed stays");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(fill(&mut client, &value) > 1_000);
    }
    assert!(full, "no flush with a delay was refused");
}
