//! Codecs: how typed keys and values become bytes.
//!
//! | type | bytes |
//! | --- | --- |
//! | unsigned integers | big-endian |
//! | signed integers | big-endian, the sign bit flipped |
//! | `bool` | 0 or 1 |
//! | `String`, `Vec<u8>` | as they are, where nothing follows |
//! | in a tuple, before its last part | bytes with 0 written as 0, 255; then 0, 0 |
//! | tuples | their parts, one after the other |
//! | `()` | nothing |
//!
//! The order of the bytes is that of the values, tuples' too: 0, 0 ends a text before anything that
//! goes on, since a 0 in the text is followed by 255.

use std::fmt;

/// An error of a [`Codec`]: bytes that are no value of the type, or a value that the codec cannot
/// write.
///
/// # Examples
/// ```
/// use bristlecone::Codec;
///
/// let error = u32::decode(&[1, 2, 3]).unwrap_err();
/// assert_eq!(error.to_string(), "3 bytes where 4 are wanted");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodecError(String);

impl CodecError {
    /// Makes an error that says what was found.
    ///
    /// # Examples
    /// ```
    /// let error = bristlecone::CodecError::new("no temperature is below -273");
    /// assert_eq!(error.to_string(), "no temperature is below -273");
    /// ```
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CodecError {}

/// A type whose values can be stored.
///
/// With the feature `serde`, `Serde<T>` is a codec for every `T` that serde can write and read.
///
/// # Examples
/// ```
/// use bristlecone::{Codec, CodecError};
///
/// struct Celsius(i16);
///
/// impl Codec for Celsius {
///     fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), CodecError> {
///         self.0.encode(bytes)
///     }
///
///     fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
///         Ok(Self(i16::decode(bytes)?))
///     }
/// }
///
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("weather.db"))?;
/// let readings = db.typed::<String, Celsius>("readings")?;
/// readings.insert(&"bergen".into(), &Celsius(-2))?;
/// assert_eq!(readings.get(&"bergen".into())?.expect("it was inserted").0, -2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Codec: Sized {
    /// Adds the bytes of this value to `bytes`.
    ///
    /// # Errors
    /// [`CodecError`] if the value cannot be written. Bytes that were added to `bytes` are not used
    /// then.
    ///
    /// # Examples
    /// ```
    /// use bristlecone::Codec;
    ///
    /// let mut bytes = vec![7];
    /// 258u16.encode(&mut bytes)?;
    /// assert_eq!(bytes, [7, 1, 2]);
    /// # Ok::<(), bristlecone::CodecError>(())
    /// ```
    fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), CodecError>;

    /// Returns the value that all of these bytes stand for.
    ///
    /// # Errors
    /// [`CodecError`] if they stand for none.
    ///
    /// # Examples
    /// ```
    /// use bristlecone::Codec;
    ///
    /// assert_eq!(u16::decode(&[1, 2]), Ok(258));
    /// assert!(u16::decode(&[1, 2, 3]).is_err());
    /// ```
    fn decode(bytes: &[u8]) -> Result<Self, CodecError>;
}

/// A type whose values can be keys: their bytes have their order. `a < b` if and only if the bytes
/// of `a` are less than those of `b`.
///
/// A key can be a part of a tuple, so it is also written in a way that shows where it ends.
///
/// # Examples
/// ```
/// use bristlecone::{CodecError, KeyCodec};
///
/// #[derive(PartialEq, Eq, PartialOrd, Ord)]
/// struct Station(u16);
///
/// impl KeyCodec for Station {
///     fn encode_part(&self, bytes: &mut Vec<u8>) {
///         self.0.encode_part(bytes);
///     }
///
///     fn decode_part(bytes: &mut &[u8]) -> Result<Self, CodecError> {
///         Ok(Self(u16::decode_part(bytes)?))
///     }
/// }
///
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("weather.db"))?;
/// let names = db.typed::<Station, String>("names")?;
/// names.insert(&Station(1317), &"bergen".into())?;
/// names.insert(&Station(492), &"oslo".into())?;
/// assert_eq!(names.first()?.expect("there are two").1, "oslo");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait KeyCodec: Sized {
    /// Adds the bytes of this value to `bytes`, so that their end is known from them.
    ///
    /// # Examples
    /// ```
    /// use bristlecone::KeyCodec;
    ///
    /// let mut bytes = Vec::new();
    /// String::from("bergen").encode_part(&mut bytes);
    /// assert_eq!(bytes, b"bergen\0\0");
    /// ```
    fn encode_part(&self, bytes: &mut Vec<u8>);

    /// Takes the value off the front of what [`encode_part`](Self::encode_part) wrote.
    ///
    /// # Errors
    /// [`CodecError`] if no value begins there.
    ///
    /// # Examples
    /// ```
    /// use bristlecone::KeyCodec;
    ///
    /// let mut bytes = &b"bergen\0\0\x07"[..];
    /// assert_eq!(String::decode_part(&mut bytes)?, "bergen");
    /// assert_eq!(bytes, [7]);
    /// # Ok::<(), bristlecone::CodecError>(())
    /// ```
    fn decode_part(bytes: &mut &[u8]) -> Result<Self, CodecError>;

    /// Adds the bytes of this value to `bytes`, where nothing follows.
    ///
    /// # Examples
    /// ```
    /// use bristlecone::KeyCodec;
    ///
    /// let [mut low, mut high] = [Vec::new(), Vec::new()];
    /// (String::from("bergen"), -2i8).encode_key(&mut low);
    /// (String::from("bergen"), 10i8).encode_key(&mut high);
    /// assert!(low < high);
    /// ```
    fn encode_key(&self, bytes: &mut Vec<u8>) {
        self.encode_part(bytes);
    }

    /// Returns the value that [`encode_key`](Self::encode_key) wrote: all of these bytes.
    ///
    /// # Errors
    /// [`CodecError`] if they stand for none.
    ///
    /// # Examples
    /// ```
    /// use bristlecone::KeyCodec;
    ///
    /// assert_eq!(String::decode_key(b"bergen")?, "bergen");
    /// assert_eq!(i8::decode_key(&[0x7f])?, -1);
    /// # Ok::<(), bristlecone::CodecError>(())
    /// ```
    fn decode_key(mut bytes: &[u8]) -> Result<Self, CodecError> {
        let value = Self::decode_part(&mut bytes)?;
        match bytes.len() {
            0 => Ok(value),
            left => Err(CodecError(format!("{left} bytes more than it has"))),
        }
    }
}

/// Values that are stored as keys are.
macro_rules! stored_like_keys {
    ($([$($part:ident)*] $type:ty;)*) => {$(
        impl<$($part: KeyCodec),*> Codec for $type {
            fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), CodecError> {
                self.encode_key(bytes);
                Ok(())
            }

            fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
                Self::decode_key(bytes)
            }
        }
    )*};
}

stored_like_keys! {
    [] u8; [] u16; [] u32; [] u64; [] u128;
    [] i8; [] i16; [] i32; [] i64; [] i128;
    [] bool; [] (); [] Vec<u8>; [] String;
    [A B] (A, B);
    [A B C] (A, B, C);
    [A B C D] (A, B, C, D);
}

/// Takes so many bytes off the front.
fn take<'b>(bytes: &mut &'b [u8], len: usize) -> Result<&'b [u8], CodecError> {
    let Some((taken, rest)) = bytes.split_at_checked(len) else {
        return Err(CodecError(format!(
            "{} bytes where {len} are wanted",
            bytes.len()
        )));
    };
    *bytes = rest;
    Ok(taken)
}

macro_rules! integers {
    ($($signed:ty, $unsigned:ty;)*) => {$(
        impl KeyCodec for $unsigned {
            fn encode_part(&self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_be_bytes());
            }

            fn decode_part(bytes: &mut &[u8]) -> Result<Self, CodecError> {
                let taken = take(bytes, size_of::<Self>())?;
                let whole = taken.iter().fold(0u128, |whole, byte| whole << 8 | u128::from(*byte));
                Ok(whole as Self)
            }
        }

        impl KeyCodec for $signed {
            fn encode_part(&self, bytes: &mut Vec<u8>) {
                (self.cast_unsigned() ^ <$signed>::MIN.cast_unsigned()).encode_part(bytes);
            }

            fn decode_part(bytes: &mut &[u8]) -> Result<Self, CodecError> {
                let flipped = <$unsigned>::decode_part(bytes)?;
                Ok((flipped ^ <$signed>::MIN.cast_unsigned()).cast_signed())
            }
        }
    )*};
}

integers! {
    i8, u8;
    i16, u16;
    i32, u32;
    i64, u64;
    i128, u128;
}

impl KeyCodec for bool {
    fn encode_part(&self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(*self));
    }

    fn decode_part(bytes: &mut &[u8]) -> Result<Self, CodecError> {
        match take(bytes, 1)? {
            [0] => Ok(false),
            [1] => Ok(true),
            other => Err(CodecError(format!("{other:?} is neither 0 nor 1"))),
        }
    }
}

impl KeyCodec for () {
    fn encode_part(&self, _: &mut Vec<u8>) {}

    fn decode_part(_: &mut &[u8]) -> Result<Self, CodecError> {
        Ok(())
    }
}

impl KeyCodec for Vec<u8> {
    fn encode_key(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self);
    }

    fn decode_key(bytes: &[u8]) -> Result<Self, CodecError> {
        Ok(bytes.to_vec())
    }

    fn encode_part(&self, bytes: &mut Vec<u8>) {
        encode_escaped(self, bytes);
    }

    fn decode_part(bytes: &mut &[u8]) -> Result<Self, CodecError> {
        decode_escaped(bytes)
    }
}

impl KeyCodec for String {
    fn encode_key(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.as_bytes());
    }

    fn decode_key(bytes: &[u8]) -> Result<Self, CodecError> {
        text(bytes.to_vec())
    }

    fn encode_part(&self, bytes: &mut Vec<u8>) {
        encode_escaped(self.as_bytes(), bytes);
    }

    fn decode_part(bytes: &mut &[u8]) -> Result<Self, CodecError> {
        text(decode_escaped(bytes)?)
    }
}

fn text(bytes: Vec<u8>) -> Result<String, CodecError> {
    String::from_utf8(bytes).map_err(|e| CodecError(e.to_string()))
}

fn encode_escaped(part: &[u8], bytes: &mut Vec<u8>) {
    for byte in part {
        bytes.push(*byte);
        if *byte == 0 {
            bytes.push(255);
        }
    }
    bytes.extend([0, 0]);
}

fn decode_escaped(bytes: &mut &[u8]) -> Result<Vec<u8>, CodecError> {
    let mut part = Vec::new();
    loop {
        match take(bytes, 1)? {
            [0] => match take(bytes, 1)? {
                [0] => return Ok(part),
                [255] => part.push(0),
                other => return Err(CodecError(format!("0 is followed by {other:?}"))),
            },
            plain => part.extend_from_slice(plain),
        }
    }
}

/// Tuples of some parts and a last one, which needs no end.
macro_rules! tuples {
    ($(($($part:ident $at:tt),+; $last:ident $last_at:tt))*) => {$(
        impl<$($part: KeyCodec,)+ $last: KeyCodec> KeyCodec for ($($part,)+ $last) {
            fn encode_key(&self, bytes: &mut Vec<u8>) {
                $(self.$at.encode_part(bytes);)+
                self.$last_at.encode_key(bytes);
            }

            fn decode_key(mut bytes: &[u8]) -> Result<Self, CodecError> {
                Ok(($($part::decode_part(&mut bytes)?,)+ $last::decode_key(bytes)?))
            }

            fn encode_part(&self, bytes: &mut Vec<u8>) {
                $(self.$at.encode_part(bytes);)+
                self.$last_at.encode_part(bytes);
            }

            fn decode_part(bytes: &mut &[u8]) -> Result<Self, CodecError> {
                Ok(($($part::decode_part(bytes)?,)+ $last::decode_part(bytes)?))
            }
        }
    )*};
}

tuples! {
    (A 0; B 1)
    (A 0, B 1; C 2)
    (A 0, B 1, C 2; D 3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes<T: KeyCodec>(value: &T) -> Vec<u8> {
        let mut bytes = Vec::new();
        value.encode_key(&mut bytes);
        bytes
    }

    /// Both come back, and their bytes are ordered as they are.
    fn holds<T: KeyCodec + Ord + std::fmt::Debug>(a: &T, b: &T) {
        for value in [a, b] {
            assert_eq!(T::decode_key(&bytes(value)).as_ref(), Ok(value));
            let mut part = Vec::new();
            value.encode_part(&mut part);
            part.extend([7, 8]);
            let mut rest = part.as_slice();
            assert_eq!(T::decode_part(&mut rest).as_ref(), Ok(value));
            assert_eq!(rest, [7, 8]);
        }
        assert_eq!(bytes(a).cmp(&bytes(b)), a.cmp(b), "{a:?} {b:?}");
    }

    /// Short, and of few letters: so that one is often the beginning of another.
    fn word() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(prop_oneof![Just(0), Just(1), Just(254), Just(255)], 0..4)
    }

    proptest! {
        #[test]
        fn integers_keep_their_order(a: (u8, i16, u32, i64), b: (u8, i16, u32, i64)) {
            holds(&a, &b);
            holds(&a.3, &b.3);
        }

        #[test]
        fn wide_integers_keep_their_order(a: (u128, i128), b: (u128, i128)) {
            holds(&a.0, &b.0);
            holds(&a.1, &b.1);
        }

        #[test]
        fn texts_keep_their_order(a: (String, u64), b: (String, u64)) {
            holds(&a, &b);
            holds(&a.0, &b.0);
        }

        #[test]
        fn tuples_keep_the_order_of_their_parts(
            a in (word(), word(), any::<bool>()),
            b in (word(), word(), any::<bool>()),
        ) {
            holds(&a, &b);
            holds(&(a.0.clone(), a.1.clone()), &(b.0.clone(), b.1.clone()));
            holds(&((a.0, a.2), a.1), &((b.0, b.2), b.1));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes: Vec<u8>) {
            let _ = <(String, Vec<u8>, i64)>::decode(&bytes);
            let _ = <(bool, u16)>::decode(&bytes);
            if let Ok(number) = u32::decode(&bytes) {
                prop_assert_eq!(number.to_be_bytes().to_vec(), bytes);
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let error = u32::decode(&[1, 2, 3]).unwrap_err().to_string();
        assert_eq!(error, "3 bytes where 4 are wanted");
        let error = u16::decode(&[1, 2, 3]).unwrap_err().to_string();
        assert_eq!(error, "1 bytes more than it has");
        assert!(bool::decode(&[2]).is_err());
        assert!(String::decode(&[255]).is_err());
        assert!(<(Vec<u8>, u8)>::decode(&[0, 1, 1]).is_err());
    }
}
