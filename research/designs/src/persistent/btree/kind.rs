//! Differences between two designs of the family: the leaf, and the protection of changes.

use super::BTree;
use super::Change;
use super::NODE_BYTES;
use super::change::{Overwritten, Protect};
use super::node::{HEADER, Node, Pairs, capacity, compare_to_word, meta, sum_of, sum_of_key};
use crate::link;
use crate::repr::{PairOf, Stored, StoredKey, Word, WordOf};
use bristlecone_pmem::Media;

/// A design of the family.
pub trait Kind: Send + Sync + 'static {
    /// Name in the root table.
    const NAME: &'static str;
    /// Bytes of a node by default.
    const DEFAULT_BYTES: u32;
    /// Node sizes in bytes.
    const NODE_BYTES: &'static [u32] = NODE_BYTES;
    /// Layout of the leaves.
    type Leaf: Leaf;
    /// Mechanism that makes changes of several words crash-atomic.
    type Protect: Protect;
}

/// Place of a key in a leaf.
#[derive(Clone, Copy, Debug)]
pub struct Found<A, B> {
    pub slot: usize,
    pub key: A,
    pub value: B,
}

/// The same for keys and values of these types.
pub type FoundOf<K, V> = Found<WordOf<K>, WordOf<V>>;

/// A layout of leaves, and the protocol that changes one of them.
///
/// Words 0 and 1 are the same in every node: the level (0), and the link to the next leaf.
pub trait Leaf: Send + Sync + Sized + 'static {
    /// True if entries are in key order.
    const SORTED: bool;

    /// Returns the number of entries that a leaf of `words` words has room for.
    fn capacity<A: Word, B: Word>(words: usize) -> usize;

    /// Returns the number of entries in a leaf, at most as many as there is room for, whatever is
    /// read.
    fn len<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M) -> usize;

    /// Returns true if an entry can be inserted without a split first. `most` is the maximum number
    /// of entries in a leaf.
    #[inline]
    fn has_room<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M, most: usize) -> bool {
        Self::len::<A, B, M>(leaf, pm) < most
    }

    /// Compares what a leaf has for a check of its entries.
    ///
    /// # Errors
    /// The reason in words.
    fn sound<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M) -> Result<(), String>;

    /// Appends the key and value words to `out`, in slot order.
    fn entries<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M, out: &mut Vec<(A, B)>);

    /// Searches for a key. The result is right under the leaf's lock, or once its version is
    /// validated.
    fn find<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media>(
        leaf: Node<'_>,
        pm: &M,
        key: &K,
    ) -> Option<FoundOf<K, V>>;

    /// Writes a whole leaf that nothing leads to yet. Does not flush.
    fn fill<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M, entries: &[(A, B)], next: u64);

    /// Returns the number of words, from word 0 on, that a split overwrites when it removes entries
    /// from a leaf.
    fn split_words<A: Word, B: Word>(words: usize) -> usize;

    /// Removes the entries whose keys are not less than `separator`, and makes `next` the next
    /// leaf. For a split, which has protected [`split_words`](Self::split_words).
    fn keep_lower<'t, K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media>(
        change: &mut Change<'t, M>,
        pm: &M,
        leaf: Node<'t>,
        separator: K::Word,
        next: u64,
    );

    /// Inserts a pair into a locked leaf that has room. `key` is the key of the pair's key word,
    /// which the leaf does not have.
    fn insert<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind<Leaf = Self>>(
        tree: &BTree<K, V, M, D>,
        leaf: Node<'_>,
        key: &K,
        pair: PairOf<K, V>,
    );

    /// Replaces a value of a locked leaf.
    fn update<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind<Leaf = Self>>(
        tree: &BTree<K, V, M, D>,
        leaf: Node<'_>,
        slot: usize,
        value: V::Word,
    );

    /// Removes an entry from a locked leaf.
    fn remove<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind<Leaf = Self>>(
        tree: &BTree<K, V, M, D>,
        leaf: Node<'_>,
        slot: usize,
    );
}

/// The conventional leaf: sorted, with the layout of an inner node. Every change is a protected
/// one.
///
/// Persist cost under [`WholeNodes`](super::change::WholeNodes), in nodes of n lines: the log's n +
/// 1 lines and 2 fences; the changed lines (an insertion or removal: those of the shifted entries,
/// in the keys and in the values, and the header's; an update: 1) and 1 fence; 1 line and 1 fence
/// for the log's head. Under [`NewWords`](super::change::NewWords) the log is as long as the
/// changed words and 2 to 6 more, and an update of numbers takes 3 fences, because its record
/// shares the line of the log's head.
#[derive(Debug)]
pub struct Sorted;

impl Leaf for Sorted {
    const SORTED: bool = true;

    fn capacity<A: Word, B: Word>(words: usize) -> usize {
        capacity::<A, B>(words)
    }

    #[inline]
    fn len<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M) -> usize {
        leaf.pairs::<A, B>().count(pm)
    }

    fn sound<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M) -> Result<(), String> {
        leaf.pairs::<A, B>().sound(pm)
    }

    fn entries<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M, out: &mut Vec<(A, B)>) {
        let leaf = leaf.pairs::<A, B>();
        out.clear();
        out.extend((0..leaf.count(pm)).map(|i| (leaf.key(pm, i), leaf.value(pm, i))));
    }

    #[inline]
    fn find<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media>(
        leaf: Node<'_>,
        pm: &M,
        key: &K,
    ) -> Option<FoundOf<K, V>> {
        let leaf = leaf.pairs::<K::Word, V::Word>();
        let n = leaf.count(pm);
        let slot = leaf.rank(pm, n, key, false);
        if slot == n {
            return None;
        }
        let word = leaf.key(pm, slot);
        compare_to_word(pm, key, word).is_eq().then(|| Found {
            slot,
            key: word,
            value: leaf.value(pm, slot),
        })
    }

    fn fill<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M, entries: &[(A, B)], next: u64) {
        leaf.pairs().fill(pm, 0, next, entries);
    }

    fn split_words<A: Word, B: Word>(_words: usize) -> usize {
        HEADER
    }

    fn keep_lower<'t, K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media>(
        change: &mut Change<'t, M>,
        pm: &M,
        leaf: Node<'t>,
        separator: K::Word,
        next: u64,
    ) {
        let pairs = leaf.pairs::<K::Word, V::Word>();
        let n = pairs.count(pm);
        let kept = K::read(pm, separator, |key| pairs.rank(pm, n, key, false)).unwrap_or(n);
        change.store(leaf, 0, meta(kept, 0, pairs.sum_of_first(pm, kept, 0)));
        change.store(leaf, 1, link::word(next));
    }

    fn insert<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind<Leaf = Self>>(
        tree: &BTree<K, V, M, D>,
        leaf: Node<'_>,
        key: &K,
        pair: PairOf<K, V>,
    ) {
        let pm = tree.pm();
        let leaf = leaf.pairs();
        let n = leaf.count(pm);
        let at = leaf.rank(pm, n, key, false);
        let mut change = tree.change(&overwritten_from(leaf, at, n + 1));
        insert_at(&mut change, pm, leaf, at, pair);
        change.commit();
    }

    fn update<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind<Leaf = Self>>(
        tree: &BTree<K, V, M, D>,
        leaf: Node<'_>,
        slot: usize,
        value: V::Word,
    ) {
        // One word could be published without a log, and two could not. The paper's tree logs the
        // node all the same (section 6.3: "LCB+-Tree does not need to shift entries for update, but
        // ... it FLUSHes the log").
        let from = leaf.pairs::<K::Word, V::Word>().value_at(slot);
        let mut change = tree.change(&[Overwritten {
            node: leaf,
            from,
            words: V::Word::WORDS,
        }]);
        change.store_wide(leaf, from, value);
        change.commit();
    }

    fn remove<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind<Leaf = Self>>(
        tree: &BTree<K, V, M, D>,
        leaf: Node<'_>,
        slot: usize,
    ) {
        let pm = tree.pm();
        let pairs = leaf.pairs::<K::Word, V::Word>();
        let n = pairs.count(pm);
        let mut change = tree.change(&overwritten_from(pairs, slot, n - 1));
        let sum = leaf.sum(pm) ^ sum_of_key(pairs.key(pm, slot));
        for i in slot..n - 1 {
            change.store_wide(leaf, pairs.key_at(i), pairs.key(pm, i + 1));
            change.store_wide(leaf, pairs.value_at(i), pairs.value(pm, i + 1));
        }
        change.store(leaf, 0, meta(n - 1, 0, sum));
        change.commit();
    }
}

/// Returns the words that inserting or removing an entry at `at` overwrites in a sorted node that
/// has `n` entries afterwards.
pub fn overwritten_from<A: Word, B: Word>(
    node: Pairs<'_, A, B>,
    at: usize,
    n: usize,
) -> [Overwritten<'_>; 3] {
    let words = |from, words| Overwritten {
        node: *node,
        from,
        words,
    };
    [
        words(0, 1),
        words(node.key_at(at), (n - at) * A::WORDS),
        words(node.value_at(at), (n - at) * B::WORDS),
    ]
}

/// Inserts an entry into a sorted node that has room, by shifting those from `at` on. Each word is
/// read before the store that replaces it, and no stored word is read.
pub fn insert_at<'t, A: Word, B: Word, M: Media>(
    change: &mut Change<'t, M>,
    pm: &M,
    pairs: Pairs<'t, A, B>,
    at: usize,
    (key, value): (A, B),
) {
    let (node, n, level) = (*pairs, pairs.count(pm), pairs.level(pm));
    let sum = node.sum(pm) ^ sum_of(level, key, value);
    for i in (at..n).rev() {
        change.store_wide(node, pairs.key_at(i + 1), pairs.key(pm, i));
        change.store_wide(node, pairs.value_at(i + 1), pairs.value(pm, i));
    }
    change.store_wide(node, pairs.key_at(at), key);
    change.store_wide(node, pairs.value_at(at), value);
    change.store(node, 0, meta(n + 1, level, sum));
}
