//! The parts of the contract that every design outside the leaf trees implements alike, by methods
//! of the same names.
//!
//! | method of the design | is |
//! | --- | --- |
//! | `find_value` | `get_with` |
//! | `get_batch`, `insert_batch` | `multi_get`, `multi_insert` |
//! | `scan_up`, `scan_down` | the scans |
//! | `put`, `replace`, `take_out` after `check_pair` | the changes of designs that commit in these |
//! | `load_sorted` | `bulk_load` |
//! | `measure`, `check` | `stats`, `verify` |

/// Methods of an `impl OrderedIndex<K, V>`, by what they do.
macro_rules! forward {
    ($($what:ident),*) => {
        $($crate::forward::forward!(@ $what);)*
    };
    // A design refuses pairs that it cannot hold before it looks at anything.
    (@ changes) => {
        fn insert(&self, key: &K, value: &V) -> Result<(), InsertError> {
            self.check_pair(key, value)?;
            self.put(key, value, IfPresent::Refuse).map(|_| ())
        }

        fn upsert(&self, key: &K, value: &V) -> Result<bool, InsertError> {
            self.check_pair(key, value)?;
            self.put(key, value, IfPresent::Replace)
        }

        fn update(&self, key: &K, value: &V) -> Result<(), UpdateError> {
            $crate::common::check_value(self.read_only, value)?;
            self.replace(key, value)
        }

        fn remove(&self, key: &K) -> Result<bool, RemoveError> {
            if self.read_only {
                return Err(RemoveError::ReadOnly);
            }
            self.take_out(key)
        }
    };
    (@ lookups) => {
        #[inline]
        fn get_with<R>(&self, key: &K, f: impl FnOnce(&V) -> R) -> Option<R> {
            self.find_value(key, f)
        }
    };
    (@ lookup_batches) => {
        fn multi_get<Q: std::borrow::Borrow<K>>(
            &self,
            keys: &[Q],
            out: &mut Vec<Option<V::Owned>>,
        ) {
            self.get_batch(keys, out);
        }
    };
    (@ insert_batches) => {
        fn multi_insert<Q: std::borrow::Borrow<K>, W: std::borrow::Borrow<V>>(
            &self,
            pairs: &[(Q, W)],
            out: &mut Vec<Result<(), InsertError>>,
        ) {
            self.insert_batch(pairs, out);
        }
    };
    (@ scans) => {
        fn scan<R: std::ops::RangeBounds<K>>(
            &self,
            range: R,
            visit: impl FnMut(&K, &V) -> std::ops::ControlFlow<()>,
        ) {
            self.scan_up(&range, visit);
        }
    };
    (@ checks) => {
        fn stats(&self) -> $crate::index::IndexStats {
            self.measure()
        }

        fn verify(
            &self,
        ) -> Result<$crate::index::VerifyReport, $crate::index::Violation> {
            self.check()
        }
    };
}

/// Implements `BulkLoad` and, unless `only load` is given, `ReverseScan`:
/// `forward_impls!(Tree<K, V, M>, KeyRepr, Repr)`.
macro_rules! forward_impls {
    ($index:ident<K, V, M $(, $p:ident: $bound:path)?>, $key:path, $value:path) => {
        impl<K, V, M $(, $p)?> $crate::index::ReverseScan<K, V> for $index<K, V, M $(, $p)?>
        where
            K: $key + ?Sized,
            V: $value + ?Sized,
            M: Media,
            $($p: $bound,)?
        {
            fn scan_reverse<R: std::ops::RangeBounds<K>>(
                &self,
                range: R,
                visit: impl FnMut(&K, &V) -> std::ops::ControlFlow<()>,
            ) {
                self.scan_down(&range, visit);
            }
        }

        $crate::forward::forward_impls!(
            only load: $index<K, V, M $(, $p: $bound)?>, $key, $value
        );
    };
    (only load: $index:ident<K, V, M $(, $p:ident: $bound:path)?>, $key:path, $value:path) => {
        impl<K, V, M $(, $p)?> $crate::index::BulkLoad<K, V> for $index<K, V, M $(, $p)?>
        where
            K: $key + ?Sized,
            V: $value + ?Sized,
            M: Media,
            $($p: $bound,)?
        {
            fn bulk_load<Q: std::borrow::Borrow<K>, W: std::borrow::Borrow<V>>(
                &mut self,
                sorted: impl Iterator<Item = (Q, W)>,
                fill: $crate::index::Fill,
            ) -> Result<u64, InsertError> {
                self.load_sorted(sorted, fill)
            }
        }
    };
}

pub(crate) use {forward, forward_impls};
