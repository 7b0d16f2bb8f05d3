//! What two designs of the family differ in: the leaf, and how changes are protected.

use super::BTree;
use super::Change;
use super::NODE_BYTES;
use super::change::{Overwritten, Protect};
use super::node::{HEADER, Node, Pairs, capacity, compare_to_word, meta};
use crate::repr::{PairOf, Stored, StoredKey, Word, WordOf};
use bristlecone_pmem::Media;

/// A design of the family.
pub trait Kind: Send + Sync + 'static {
    /// What the root table calls it.
    const NAME: &'static str;
    /// Bytes of a node where none are asked for.
    const USUAL_BYTES: u32;
    /// Bytes that a node can have.
    const NODE_BYTES: &'static [u32] = NODE_BYTES;
    /// Its leaves.
    type Leaf: Leaf;
    /// How it makes changes of several words crash-atomic.
    type Protect: Protect;
}

/// Where a key was found in a leaf.
#[derive(Clone, Copy, Debug)]
pub struct Found<A, B> {
    pub slot: usize,
    pub key: A,
    pub value: B,
}

/// The same for keys and values of these types.
pub type FoundOf<K, V> = Found<WordOf<K>, WordOf<V>>;

/// A layout of leaves and the protocol that changes one of them.
///
/// Words 0 and 1 are every node's: the level (0), and the offset of the next leaf.
pub trait Leaf: Send + Sync + Sized + 'static {
    /// Entries come in key order.
    const SORTED: bool;

    /// Entries that a leaf of `words` words has room for.
    fn capacity<A: Word, B: Word>(words: usize) -> usize;

    /// Entries in a leaf; never more than there is room for, whatever is read.
    fn len<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M) -> usize;

    /// True if an entry can be inserted without a split first. `most`: entries that a leaf is given.
    #[inline]
    fn has_room<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M, most: usize) -> bool {
        Self::len::<A, B, M>(leaf, pm) < most
    }

    /// Puts the key and value words into `out`, in slot order.
    fn entries<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M, out: &mut Vec<(A, B)>);

    /// Looks for a key. Right under the leaf's lock, or once its version is validated.
    fn find<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media>(
        leaf: Node<'_>,
        pm: &M,
        key: &K,
    ) -> Option<FoundOf<K, V>>;

    /// Writes a whole leaf that nothing leads to yet. Nothing is flushed.
    fn fill<A: Word, B: Word, M: Media>(leaf: Node<'_>, pm: &M, entries: &[(A, B)], next: u64);

    /// The words of a leaf that taking entries out of it in a split overwrites: a number from word 0.
    fn split_words<A: Word, B: Word>(words: usize) -> usize;

    /// Takes the entries out of a leaf whose keys are not less than `separator`, and makes `next` the next
    /// leaf: in a split, which has protected [`split_words`](Self::split_words).
    fn keep_lower<'t, K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media>(
        change: &mut Change<'t, M>,
        pm: &M,
        leaf: Node<'t>,
        separator: K::Word,
        next: u64,
    );

    /// Inserts a pair into a locked leaf that has room. `key` is the key of the pair's key word, which the
    /// leaf does not have.
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

    /// Takes an entry out of a locked leaf.
    fn remove<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind<Leaf = Self>>(
        tree: &BTree<K, V, M, D>,
        leaf: Node<'_>,
        slot: usize,
    );
}

/// The conventional leaf: sorted, laid out like an inner node. Every change is a protected one.
///
/// Persist cost under [`WholeNodes`](super::change::WholeNodes), in nodes of n lines: the log's n + 1 lines
/// and 2 fences, the lines that change (an insertion or removal: those of the shifted entries, in the keys
/// and in the values, and the header's; an update: 1) and 1 fence, 1 line and 1 fence for the log's head.
/// Under [`NewWords`](super::change::NewWords) the log is as long as the words that change, and 2 to 6 more, and an
/// update of numbers takes 3 fences: its record shares the line of the log's head.
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
        change.store(leaf, 0, meta(kept, 0));
        change.store(leaf, 1, next);
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
        // One word could be published without a log, two could not; the paper's tree logs the node all the same
        // (section 6.3: "LCB+-Tree does not need to shift entries for update, but ... it FLUSHes the log").
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
        for i in slot..n - 1 {
            change.store_wide(leaf, pairs.key_at(i), pairs.key(pm, i + 1));
            change.store_wide(leaf, pairs.value_at(i), pairs.value(pm, i + 1));
        }
        change.store(leaf, 0, meta(n - 1, 0));
        change.commit();
    }
}

/// What inserting an entry at `at`, or taking one out there, overwrites in a sorted node that has `n`
/// entries afterwards.
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

/// Inserts an entry into a sorted node that has room: shifts those from `at` on. A word is read before the
/// store that replaces it, and no word is read that was stored.
pub fn insert_at<'t, A: Word, B: Word, M: Media>(
    change: &mut Change<'t, M>,
    pm: &M,
    pairs: Pairs<'t, A, B>,
    at: usize,
    (key, value): (A, B),
) {
    let (node, n, level) = (*pairs, pairs.count(pm), pairs.level(pm));
    for i in (at..n).rev() {
        change.store_wide(node, pairs.key_at(i + 1), pairs.key(pm, i));
        change.store_wide(node, pairs.value_at(i + 1), pairs.value(pm, i));
    }
    change.store_wide(node, pairs.key_at(at), key);
    change.store_wide(node, pairs.value_at(at), value);
    change.store(node, 0, meta(n + 1, level));
}
