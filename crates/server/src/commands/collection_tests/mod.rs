//! Tests of hashes, sets, sorted sets and lists, in both encodings.

mod edges;
mod models;

use crate::data::{Data, Reads};
use crate::fixture::Fixture;
use crate::reply::{Out, Protocol};

/// Commands between two openings of the pool.
const OPEN_FOR: usize = 700;

type Bytes = Vec<u8>;

/// A pool that is reopened from time to time.
struct Server {
    fixture: Fixture,
    data: Option<Data>,
    done: usize,
}

impl Server {
    fn new() -> Self {
        let fixture = Fixture::new();
        let data = Some(fixture.open());
        Self {
            fixture,
            data,
            done: 0,
        }
    }

    fn data(&self) -> &Data {
        self.data.as_ref().unwrap()
    }

    fn call(&mut self, words: &[&[u8]]) -> Bytes {
        self.done += 1;
        if self.done.is_multiple_of(OPEN_FOR) {
            self.data = None;
            self.data = Some(self.fixture.open());
        }
        let name = std::str::from_utf8(words[0]).unwrap();
        let command = crate::commands::data()
            .find(|command| command.spec.name == name)
            .unwrap();
        let mut reply = Vec::new();
        let mut out = Out::new(&mut reply, Protocol::Resp2);
        self.data().run(command, 0, words, Reads::Applied, &mut out);
        reply
    }

    fn text(&mut self, line: &str) -> String {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        String::from_utf8(self.call(&words)).unwrap()
    }

    /// Parses a reply that is an array of strings.
    fn strings(&mut self, words: &[&[u8]]) -> Vec<Bytes> {
        let reply = self.call(words);
        strings(&reply)
    }

    /// Returns which of the keys hold a large collection.
    fn large(&self, keys: &[Bytes]) -> Vec<bool> {
        let mut tx = self.data().begin(0);
        let large = |key: &Bytes| {
            let value = tx.load(key).unwrap();
            value.is_some_and(|value| value.id.is_some())
        };
        keys.iter().map(large).collect()
    }

    /// Returns the number of elements after deleted collections were swept.
    fn elements(&self) -> u64 {
        let data = self.data();
        while data.sweep().unwrap() {}
        data.settle(data.applied()).unwrap();
        let snapshot = data.store().snapshot();
        assert_eq!(
            snapshot.count::<&[u8]>(&data.spaces().garbage, ..).unwrap(),
            0
        );
        snapshot
            .count::<&[u8]>(&data.spaces().elements, ..)
            .unwrap()
    }
}

fn strings(mut reply: &[u8]) -> Vec<Bytes> {
    fn line(reply: &mut &[u8]) -> (u8, i64) {
        let end = reply.iter().position(|byte| *byte == b'\r').unwrap();
        let number = std::str::from_utf8(&reply[1..end]).unwrap().parse();
        let first = reply[0];
        *reply = &reply[end + 2..];
        (first, number.unwrap())
    }
    let (kind, count) = line(&mut reply);
    assert_eq!(kind, b'*');
    (0..count)
        .map(|_| {
            let (kind, len) = line(&mut reply);
            assert_eq!(kind, b'$');
            let (text, rest) = reply.split_at(len as usize);
            reply = &rest[2..];
            text.to_vec()
        })
        .collect()
}

/// Fills a key of each kind with this number of elements.
fn fill(server: &mut Server, elements: usize) {
    for n in 0..elements {
        for line in [
            format!("hset h f{n} {n}"),
            format!("sadd s m{n}"),
            format!("zadd z {n} m{n}"),
            format!("rpush l i{n}"),
        ] {
            assert!(server.text(&line).starts_with(':'));
        }
    }
}
