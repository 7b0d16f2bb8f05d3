//! Persistent pointers: 8-byte offsets from the pool's base, 0 for null.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

/// Place of a `T` in its pool, whatever address the pool is mapped at.
pub struct POff<T: ?Sized>(u64, PhantomData<fn() -> Box<T>>);

impl<T: ?Sized> POff<T> {
    /// Points nowhere.
    pub const NULL: Self = Self(0, PhantomData);

    /// Returns the pointer to the `T` at `offset`.
    #[inline]
    #[must_use]
    pub const fn new(offset: u64) -> Self {
        Self(offset, PhantomData)
    }

    /// Returns the bytes from the pool's base, which the pool stores.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns true for the null pointer.
    #[inline]
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }
}

impl<T: ?Sized> Clone for POff<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: ?Sized> Copy for POff<T> {}
impl<T: ?Sized> PartialEq for POff<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<T: ?Sized> Eq for POff<T> {}
impl<T: ?Sized> Hash for POff<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
impl<T: ?Sized> fmt::Debug for POff<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
