//! Values of any type that serde knows, in postcard's format.

use super::{Codec, CodecError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ops::{Deref, DerefMut};

/// A value that [serde](https://serde.rs) writes and reads, in the format of
/// [postcard](https://docs.rs/postcard): numbers take as many bytes as they need, and names of
/// fields take none. Feature `serde`.
///
/// The bytes do not describe themselves. Variants may be added to an enum at its end; a struct that
/// gets another field is another format, so a type that will grow is best an enum of its versions.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("shop.db"))?;
/// use bristlecone::Serde;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// enum Order {
///     V1 { customer: String, items: Vec<(u32, u8)> },
/// }
///
/// let orders = db.typed::<u64, Serde<Order>>("orders")?;
/// let order = Order::V1 { customer: "alice".into(), items: vec![(17, 2), (300, 1)] };
/// orders.insert(&1, &Serde(order))?;
/// let Serde(Order::V1 { customer, items }) = orders.get(&1)?.expect("it was inserted");
/// assert_eq!((customer.as_str(), items.len()), ("alice", 2));
/// assert_eq!(orders.bytes().get(orders.key(&1))?.expect("as bytes").len(), 13);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serde<T>(pub T);

impl<T: Serialize + DeserializeOwned> Codec for Serde<T> {
    fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), CodecError> {
        let written = postcard::to_extend(&self.0, std::mem::take(bytes));
        *bytes = written.map_err(|e| CodecError::new(e.to_string()))?;
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        match postcard::take_from_bytes(bytes) {
            Ok((value, [])) => Ok(Self(value)),
            Ok((_, rest)) => Err(CodecError::new(format!(
                "{} bytes more than it has",
                rest.len()
            ))),
            Err(e) => Err(CodecError::new(e.to_string())),
        }
    }
}

impl<T> From<T> for Serde<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for Serde<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Serde<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::{Deserialize, Serializer};
    use std::collections::BTreeMap;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    enum Any {
        Unit,
        Struct { number: i64, text: Option<String> },
        Map(BTreeMap<u16, Vec<u8>>),
    }

    fn any_value() -> impl Strategy<Value = Any> {
        let map = proptest::collection::btree_map(any::<u16>(), any::<Vec<u8>>(), 0..4);
        prop_oneof![
            Just(Any::Unit),
            (any::<i64>(), any::<Option<String>>())
                .prop_map(|(number, text)| Any::Struct { number, text }),
            map.prop_map(Any::Map),
        ]
    }

    proptest! {
        #[test]
        fn values_come_back_after_what_was_there(value in any_value()) {
            let mut bytes = b"before".to_vec();
            Serde(value.clone()).encode(&mut bytes).unwrap();
            prop_assert_eq!(Serde::decode(&bytes[6..]), Ok(Serde(value)));
            prop_assert_eq!(&bytes[..6], b"before");
            bytes.push(0);
            prop_assert!(Serde::<Any>::decode(&bytes[6..]).is_err());
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes: Vec<u8>) {
            let _ = Serde::<Any>::decode(&bytes);
        }
    }

    /// A sequence that does not say its length, which the format has no place for.
    #[derive(Deserialize)]
    struct Endless;

    impl Serialize for Endless {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            serde::ser::SerializeSeq::end(to.serialize_seq(None)?)
        }
    }

    #[test]
    fn what_cannot_be_written_is_an_error() {
        assert!(Serde(Endless).encode(&mut Vec::new()).is_err());
    }
}
