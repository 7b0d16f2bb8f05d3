//! Tests of the server in one program: separate ones would each compile the store and the indexes
//! again. `limits` is separate, as it measures the memory of its process.

mod against_memcached;
mod against_redis;
mod arrays;
mod attack;
mod blocking;
mod blocking_against_redis;
mod budget;
mod collections_against_redis;
mod colliding_against_redis;
mod common;
mod concurrent;
mod connections;
mod generate;
mod hostile_memcached;
mod idle;
mod kill;
#[path = "../live/mod.rs"]
mod live;
mod long_commands;
mod memcached;
mod memcached_database;
mod memcached_full;
mod redis_rs;
mod scripts_against_redis;
mod tls;
mod users;

#[test]
fn serves_when_it_is_asked_to() {
    live::process::serve();
}
