//! The interface through which the model drives an index, for any key and value types.

use super::ModelError;
use super::workload::Op;
use crate::LabError;
use crate::workload::value_of;
use bristlecone_designs::StoredKey;
use bristlecone_designs::engines::Engine;
use bristlecone_designs::index::Direction;
use std::borrow::Cow;
use std::cell::Cell;
use std::ops::{Bound, ControlFlow};

/// An index that the model drives.
pub(crate) trait Executes {
    /// Does an operation and checks its answer.
    fn execute(&self, op: Op) -> Result<(), ModelError>;

    /// Looks up existing keys in one call.
    fn multi_get(&self, keys: &[u64]) -> Result<(), ModelError>;

    /// Does operations one after the other.
    fn execute_all(&self, ops: &[Op]) -> Result<(), ModelError> {
        ops.iter().try_for_each(|op| self.execute(*op))
    }
}

/// A type whose keys and values stand for the numbers of a workload.
pub(crate) trait Number: StoredKey + ToOwned<Owned = Self> + Copy {
    /// Returns the key of a number. Keys have the order of their numbers.
    fn key(number: u64) -> Self;

    /// Returns the number of a key.
    fn number(self) -> u64;

    /// Returns the keys of some numbers.
    fn keys(numbers: &[u64]) -> Cow<'_, [Self]>;

    /// Returns the value of a number.
    fn value(number: u64) -> Self;

    /// Calls `f` with a vector for the answers of a batch, which is reused from batch to batch.
    fn with_answers<R>(f: impl FnOnce(&mut Vec<Option<Self>>) -> R) -> R;
}

/// Implements [`Number`].
macro_rules! number {
    ($type:ty, |$key:ident| $of_key:expr, $number:expr, |$keys:ident| $of_keys:expr,
     |$value:ident| $of_value:expr) => {
        impl Number for $type {
            #[inline(always)]
            fn key($key: u64) -> Self {
                $of_key
            }

            #[inline(always)]
            fn number(self) -> u64 {
                let number: fn(Self) -> u64 = $number;
                number(self)
            }

            #[inline(always)]
            fn keys($keys: &[u64]) -> Cow<'_, [Self]> {
                $of_keys
            }

            #[inline(always)]
            fn value($value: u64) -> Self {
                $of_value
            }

            fn with_answers<R>(f: impl FnOnce(&mut Vec<Option<Self>>) -> R) -> R {
                thread_local! {
                    static ANSWERS: Cell<Vec<Option<$type>>> = const { Cell::new(Vec::new()) };
                }
                let mut answers = ANSWERS.take();
                let result = f(&mut answers);
                ANSWERS.set(answers);
                result
            }
        }
    };
}

number!(
    u64,
    |key| key,
    |key| key,
    |keys| Cow::Borrowed(keys),
    |value| value
);
number!(
    u128,
    |key| u128::from(key) << 64 | u128::from(!key),
    |key| (key >> 64) as u64,
    |keys| keys.iter().map(|key| Self::key(*key)).collect(),
    |value| u128::from(!value) << 64 | u128::from(value)
);

/// Any index with keys and values of type `N`.
pub(crate) struct Index<N: Number>(pub Box<dyn Engine<N, N>>);

impl<N: Number> Executes for Index<N> {
    #[inline]
    fn execute(&self, op: Op) -> Result<(), ModelError> {
        let index = &*self.0;
        let (phase, right) = match op {
            Op::Insert { key } => {
                index
                    .insert(&N::key(key), &N::value(value_of(key)))
                    .map_err(|e| LabError::index("inserting a new key", e))?;
                ("insert", true)
            }
            Op::Lookup { key } => {
                let found = index.get(&N::key(key));
                ("lookup", found == Some(N::value(value_of(key))))
            }
            Op::Update { key, value } => {
                index
                    .update(&N::key(key), &N::value(value))
                    .map_err(|e| LabError::index("updating a key", e))?;
                ("update", true)
            }
            Op::Remove { key } => {
                let was_there = index
                    .remove(&N::key(key))
                    .map_err(|e| LabError::index("removing a key", e))?;
                ("remove", was_there)
            }
            Op::Scan { key, keys } => {
                // The key that the scan starts from exists, so it visits at least one.
                let (mut seen, mut right) = (0, true);
                let from = N::key(key);
                let range = (Bound::Included(&from), Bound::Unbounded);
                index.scan(range, Direction::Up, None, &mut |key, value| {
                    right &= *value == N::value(value_of(key.number()));
                    seen += 1;
                    if seen < keys {
                        ControlFlow::Continue(())
                    } else {
                        ControlFlow::Break(())
                    }
                });
                ("scan", right && seen > 0)
            }
        };
        answered(phase, u64::from(right), 1)
    }

    #[inline]
    fn multi_get(&self, keys: &[u64]) -> Result<(), ModelError> {
        let right = N::with_answers(|values| {
            let keys_of = N::keys(keys);
            self.0.get_many(&keys_of.iter().collect::<Vec<_>>(), values);
            let answers = keys.iter().zip(values);
            let right = answers.filter(|(key, value)| **value == Some(N::value(value_of(**key))));
            right.count()
        });
        answered("multi-get", right as u64, keys.len() as u64)
    }
}

#[inline]
fn answered(phase: &'static str, right: u64, of: u64) -> Result<(), ModelError> {
    if right == of {
        return Ok(());
    }
    Err(ModelError::Lab(LabError::WrongAnswer {
        contender: "the index".into(),
        phase,
        right,
        of,
    }))
}
