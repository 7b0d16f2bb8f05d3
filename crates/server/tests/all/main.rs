//! Tests of the server in one program: each would compile store and indexes again. `limits` is one of its own, as it measures
//! the memory of its process.

mod against_redis;
mod arrays;
mod attack;
mod blocking;
mod blocking_against_redis;
mod budget;
mod collections_against_redis;
mod common;
mod concurrent;
mod connections;
mod generate;
mod idle;
mod kill;
#[path = "../live/mod.rs"]
mod live;
mod redis_rs;

#[test]
fn serves_when_it_is_asked_to() {
    live::process::serve();
}
