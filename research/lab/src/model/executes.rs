//! An index as the machine drives it, whatever its keys and values are made of.

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

/// An index as the machine drives it.
pub(crate) trait Executes {
    /// Does an operation, and sees that it is answered rightly.
    fn execute(&self, op: Op) -> Result<(), ModelError>;

    /// Looks up keys that are there, all at once.
    fn look_up_together(&self, keys: &[u64]) -> Result<(), ModelError>;

    /// Does one after the other.
    fn execute_all(&self, ops: &[Op]) -> Result<(), ModelError> {
        ops.iter().try_for_each(|op| self.execute(*op))
    }
}

/// What the numbers of a workload are as keys and values.
pub(crate) trait Number: StoredKey + ToOwned<Owned = Self> + Copy {
    /// A key; keeps the numbers' order.
    fn key(number: u64) -> Self;

    /// The number that it is the key of.
    fn number(self) -> u64;

    /// Keys.
    fn keys(numbers: &[u64]) -> Cow<'_, [Self]>;

    /// A value.
    fn value(number: u64) -> Self;

    /// Room for the answers of a batch, kept from batch to batch.
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

/// Any index, of keys and values that are `N`s.
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
                // The one that it starts from is there, so one is seen at the least.
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
    fn look_up_together(&self, keys: &[u64]) -> Result<(), ModelError> {
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
