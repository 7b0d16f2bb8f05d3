//! The commands of a tortured server's clients, and the values of their keys then.
//!
//! Each client has keys of its own, whose kind follows from their number, and sends commands on
//! them one by one or several at once, and transactions. A transaction also counts itself under a
//! key of its client and under one that all clients share: what the clients' keys count together is
//! what the shared one has, or else a transaction was done in part.

use crate::client::{self, Reply};
use rand::rngs::Xoshiro256PlusPlus as Random;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, VecDeque};

/// Keys that each client works on.
const KEYS: u8 = 40;
/// The key under which a client counts its transactions; it is never deleted.
pub const TALLY: u8 = KEYS;
/// The key under which all clients count theirs.
pub const SHARED: &[u8] = b"all:transactions";
/// Most commands and transactions that are sent at once.
const BATCH: usize = 16;

/// The type of a key, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    List,
    Hash,
    Sorted,
}

/// The bytes of a client's key.
pub fn name(client: u16, key: u8) -> Vec<u8> {
    format!("c{client}:{key}").into_bytes()
}

fn kind(key: u8) -> Kind {
    use Kind::{Hash, List, Number, Sorted, Text};
    match key {
        TALLY => Number,
        key => [Text, Number, List, Hash, Sorted][usize::from(key % 5)],
    }
}

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Set(Vec<u8>),
    Increment,
    PushFront(Vec<u8>),
    PushBack(Vec<u8>),
    Field(Vec<u8>, Vec<u8>),
    Score(Vec<u8>, u32),
    Delete,
}

/// A unit that is there wholly or not at all: a command, or several in a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit(Vec<(u8, Change)>);

impl Unit {
    fn is_transaction(&self) -> bool {
        self.0.len() > 1
    }

    /// Appends the requests of `client` to a buffer.
    pub fn encode(&self, client: u16, requests: &mut Vec<u8>) {
        if self.is_transaction() {
            client::encode(requests, &[b"MULTI"]);
        }
        for (key, change) in &self.0 {
            let key = name(client, *key);
            match change {
                Change::Set(value) => client::encode(requests, &[b"SET", &key, value]),
                Change::Increment => client::encode(requests, &[b"INCR", &key]),
                Change::PushFront(element) => client::encode(requests, &[b"LPUSH", &key, element]),
                Change::PushBack(element) => client::encode(requests, &[b"RPUSH", &key, element]),
                Change::Field(field, value) => {
                    client::encode(requests, &[b"HSET", &key, field, value]);
                }
                Change::Score(member, score) => {
                    let score = score.to_string();
                    client::encode(requests, &[b"ZADD", &key, score.as_bytes(), member]);
                }
                Change::Delete => client::encode(requests, &[b"DEL", &key]),
            }
        }
        if self.is_transaction() {
            client::encode(requests, &[b"INCR", SHARED]);
            client::encode(requests, &[b"EXEC"]);
        }
    }

    /// How many replies it gets; the last one says that it was done.
    pub fn replies(&self) -> usize {
        if self.is_transaction() {
            self.0.len() + 3
        } else {
            1
        }
    }
}

/// A client's units in one round: the same seed gives the same ones.
pub struct Plan {
    random: Random,
    round: u64,
    sequence: u64,
}

impl Plan {
    /// The units of `client` in `round` under `seed`.
    pub fn new(seed: u64, round: u64, client: u16) -> Self {
        let mix = round << 16 | u64::from(client);
        Self {
            random: Random::seed_from_u64(seed ^ mix.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            round,
            sequence: 0,
        }
    }

    /// The units that are sent at once: half of the time a single one.
    pub fn batch(&mut self) -> VecDeque<Unit> {
        let most = if self.random.random() { BATCH } else { 1 };
        let length = self.random.random_range(1..=most);
        (0..length).map(|_| self.unit()).collect()
    }

    fn unit(&mut self) -> Unit {
        if !self.random.random_ratio(1, 8) {
            return Unit(vec![self.step()]);
        }
        let length = self.random.random_range(2..=5);
        let mut steps: Vec<_> = (0..length).map(|_| self.step()).collect();
        steps.push((TALLY, Change::Increment));
        Unit(steps)
    }

    fn step(&mut self) -> (u8, Change) {
        let key = self.random.random_range(0..KEYS);
        self.sequence += 1;
        let kind = kind(key);
        // Collections are left to grow until they are large ones, which are stored in another way.
        let deleted = match kind {
            Kind::Text | Kind::Number => self.random.random_ratio(1, 6),
            Kind::List | Kind::Hash | Kind::Sorted => self.random.random_ratio(1, 250),
        };
        let change = match kind {
            _ if deleted => Change::Delete,
            Kind::Text => Change::Set(self.bytes()),
            Kind::Number => Change::Increment,
            Kind::List if self.random.random() => Change::PushFront(self.bytes()),
            Kind::List => Change::PushBack(self.bytes()),
            Kind::Hash => Change::Field(self.name(), self.bytes()),
            Kind::Sorted => Change::Score(self.name(), self.random.random_range(0..1000)),
        };
        (key, change)
    }

    /// One of some names, so that many are met again.
    fn name(&mut self) -> Vec<u8> {
        let number = self.random.random_range(0..400);
        format!("n{number}").into_bytes()
    }

    /// Bytes that no other step has, mostly few.
    fn bytes(&mut self) -> Vec<u8> {
        let mut bytes = format!("{}.{}.", self.round, self.sequence).into_bytes();
        let longer = match self.random.random_range(0..200u32) {
            0 => 10_000,
            1..20 => 500,
            _ => 30,
        };
        let length = bytes.len() + self.random.random_range(0..longer);
        bytes.resize(length, b'.');
        bytes
    }
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Text(Vec<u8>),
    Number(i64),
    List(VecDeque<Vec<u8>>),
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
    /// Scores by members.
    Sorted(BTreeMap<Vec<u8>, u32>),
}

impl Value {
    fn empty(kind: Kind) -> Self {
        match kind {
            Kind::Text => Self::Text(Vec::new()),
            Kind::Number => Self::Number(0),
            Kind::List => Self::List(VecDeque::new()),
            Kind::Hash => Self::Hash(BTreeMap::new()),
            Kind::Sorted => Self::Sorted(BTreeMap::new()),
        }
    }

    /// Changes it; the reply.
    fn change(&mut self, change: &Change) -> Option<Reply> {
        let length = |length: usize| Reply::Integer(length as i64);
        Some(match (self, change) {
            (Self::Text(text), Change::Set(value)) => {
                text.clone_from(value);
                Reply::ok()
            }
            (Self::Number(number), Change::Increment) => {
                *number += 1;
                Reply::Integer(*number)
            }
            (Self::List(list), Change::PushFront(element)) => {
                list.push_front(element.clone());
                length(list.len())
            }
            (Self::List(list), Change::PushBack(element)) => {
                list.push_back(element.clone());
                length(list.len())
            }
            (Self::Hash(hash), Change::Field(field, value)) => {
                let before = hash.insert(field.clone(), value.clone());
                Reply::Integer(before.is_none().into())
            }
            (Self::Sorted(sorted), Change::Score(member, score)) => {
                let before = sorted.insert(member.clone(), *score);
                Reply::Integer(before.is_none().into())
            }
            _ => return None,
        })
    }

    /// A few words for a message.
    fn shown(&self) -> String {
        match self {
            Self::Text(text) => bristlecone_command::text::quoted(text),
            Self::Number(number) => number.to_string(),
            Self::List(list) => format!("a list of {}", list.len()),
            Self::Hash(hash) => format!("a hash of {}", hash.len()),
            Self::Sorted(sorted) => format!("a sorted set of {}", sorted.len()),
        }
    }
}

/// A value, or that there is none, for a message.
pub fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "absent".to_owned(), Value::shown)
}

/// The values of a client's keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State(pub BTreeMap<u8, Value>);

impl State {
    /// Applies a unit; the replies that its changes get.
    pub fn apply(&mut self, unit: &Unit) -> Vec<Reply> {
        let replies = unit.0.iter().map(|(key, change)| {
            if *change == Change::Delete {
                return Reply::Integer(self.0.remove(key).is_some().into());
            }
            let empty = || Value::empty(kind(*key));
            let value = self.0.entry(*key).or_insert_with(empty);
            // Plans change a key as its kind allows.
            value.change(change).unwrap_or(Reply::Null)
        });
        replies.collect()
    }

    /// How many transactions have been done.
    pub fn tally(&self) -> i64 {
        match self.0.get(&TALLY) {
            Some(Value::Number(number)) => *number,
            _ => 0,
        }
    }

    /// Appends the requests that read all keys of `client`, one for each of [`keys`].
    pub fn encode_reads(client: u16, requests: &mut Vec<u8>) {
        for key in keys() {
            let name = &name(client, key);
            match kind(key) {
                Kind::Text | Kind::Number => client::encode(requests, &[b"GET", name]),
                Kind::List => client::encode(requests, &[b"LRANGE", name, b"0", b"-1"]),
                Kind::Hash => client::encode(requests, &[b"HGETALL", name]),
                Kind::Sorted => {
                    client::encode(requests, &[b"ZRANGE", name, b"0", b"-1", b"WITHSCORES"]);
                }
            }
        }
    }

    /// Takes in what a key's reading was answered; false if that cannot be.
    pub fn read(&mut self, key: u8, reply: Reply) -> bool {
        let value = match (kind(key), reply) {
            (Kind::Text | Kind::Number, Reply::Null) => None,
            (Kind::Text, Reply::Bulk(text)) => Some(Value::Text(text)),
            (Kind::Number, Reply::Bulk(digits)) => match parsed(&digits) {
                Some(number) => Some(Value::Number(number)),
                None => return false,
            },
            (Kind::List | Kind::Hash | Kind::Sorted, Reply::Array(elements))
                if elements.is_empty() =>
            {
                None
            }
            (kind @ (Kind::List | Kind::Hash | Kind::Sorted), Reply::Array(elements)) => {
                match collection(kind, elements) {
                    Some(value) => Some(value),
                    None => return false,
                }
            }
            _ => return false,
        };
        if let Some(value) = value {
            self.0.insert(key, value);
        }
        true
    }
}

/// All keys of a client.
pub fn keys() -> impl Iterator<Item = u8> {
    0..=TALLY
}

fn parsed<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    str::from_utf8(digits).ok()?.parse().ok()
}

/// A collection from its elements; `None` if it cannot be one.
fn collection(kind: Kind, elements: Vec<Reply>) -> Option<Value> {
    let bytes = elements.into_iter().map(|element| match element {
        Reply::Bulk(bytes) => Some(bytes),
        _ => None,
    });
    let list: VecDeque<Vec<u8>> = bytes.collect::<Option<_>>()?;
    if kind == Kind::List {
        return Some(Value::List(list));
    }
    let mut list = Vec::from(list);
    let pairs = list.chunks_exact_mut(2).map(|pair| {
        let [first, second] = pair else { return None };
        Some((std::mem::take(first), std::mem::take(second)))
    });
    let pairs: Vec<_> = pairs.collect::<Option<_>>()?;
    let count = pairs.len();
    let (value, length) = if kind == Kind::Hash {
        let hash: BTreeMap<_, _> = pairs.into_iter().collect();
        let length = hash.len();
        (Value::Hash(hash), length)
    } else {
        let scored = pairs
            .into_iter()
            .map(|(member, score)| Some((member, parsed(&score)?)));
        let sorted: BTreeMap<_, _> = scored.collect::<Option<_>>()?;
        let length = sorted.len();
        (Value::Sorted(sorted), length)
    };
    // Nothing is there twice, or without its other half.
    (length == count && list.len() == 2 * count).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_repeat_and_do_all_there_is() {
        let batches = |seed| -> Vec<_> {
            let mut plan = Plan::new(seed, 3, 5);
            (0..2_000).map(|_| plan.batch()).collect()
        };
        assert_eq!(batches(7), batches(7));
        assert_ne!(batches(7), batches(8));
        let units: Vec<Unit> = batches(7).into_iter().flatten().collect();
        assert!(units.iter().any(Unit::is_transaction));
        let mut state = State::default();
        for unit in &units {
            let replies = state.apply(unit);
            assert!(!replies.contains(&Reply::Null), "{unit:?}");
            let mut requests = Vec::new();
            unit.encode(5, &mut requests);
            let arrays = requests.iter().filter(|byte| **byte == b'*').count();
            assert_eq!(arrays, unit.replies(), "{unit:?}");
        }
        let transactions = units.iter().filter(|unit| unit.is_transaction()).count();
        assert_eq!(state.tally(), transactions as i64);
        let large = |value: &Value| match value {
            Value::List(list) => list.len() > 128,
            Value::Hash(hash) => hash.len() > 128,
            Value::Sorted(sorted) => sorted.len() > 128,
            Value::Text(_) | Value::Number(_) => false,
        };
        assert!(state.0.values().filter(|value| large(value)).count() > 3);
    }

    #[test]
    fn what_is_read_is_what_was_written() {
        let bulk = |text: &str| Reply::Bulk(text.as_bytes().to_vec());
        let mut state = State::default();
        let steps = [
            (0, Change::Set(b"text".to_vec())),
            (1, Change::Increment),
            (2, Change::PushBack(b"b".to_vec())),
            (2, Change::PushFront(b"a".to_vec())),
            (3, Change::Field(b"f".to_vec(), b"v".to_vec())),
            (4, Change::Score(b"m".to_vec(), 7)),
            (6, Change::Increment),
            (6, Change::Delete),
        ];
        let replies = state.apply(&Unit(steps.to_vec()));
        assert_eq!(replies[3], Reply::Integer(2));
        assert_eq!(replies[7], Reply::Integer(1));
        let mut read = State::default();
        let answers = [
            (0, bulk("text")),
            (1, bulk("1")),
            (2, Reply::Array(vec![bulk("a"), bulk("b")])),
            (3, Reply::Array(vec![bulk("f"), bulk("v")])),
            (4, Reply::Array(vec![bulk("m"), bulk("7")])),
            (6, Reply::Null),
            (7, Reply::Array(Vec::new())),
        ];
        for (key, answer) in answers {
            assert!(read.read(key, answer), "key {key}");
        }
        assert_eq!(read, state);
        for (key, answer) in [
            (0, Reply::Integer(1)),
            (1, bulk("x")),
            (3, Reply::Array(vec![bulk("f")])),
            (4, Reply::Array(vec![bulk("m"), bulk("x")])),
        ] {
            assert!(!read.read(key, answer), "key {key}");
        }
    }
}
