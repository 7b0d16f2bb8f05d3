//! What two designs of the family differ in: the leaf, and how changes are protected.

use super::BTree;
use super::Change;
use super::NODE_BYTES;
use super::change::{Overwritten, Protect};
use super::node::{HEADER, Node, capacity, compare_to_word, meta};
use crate::repr::{KeyRepr, Repr};
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
pub struct Found {
    pub slot: usize,
    pub key: u64,
    pub value: u64,
}

/// A layout of leaves and the protocol that changes one of them.
///
/// Words 0 and 1 are every node's: the level (0), and the offset of the next leaf.
pub trait Leaf: Send + Sync + Sized + 'static {
    /// Entries come in key order.
    const SORTED: bool;

    /// Entries that a leaf of `words` words has room for.
    fn capacity(words: usize) -> usize;

    /// Entries in a leaf; never more than there is room for, whatever is read.
    fn len<M: Media>(leaf: Node<'_>, pm: &M) -> usize;

    /// True if an entry can be inserted without a split first. `most`: entries that a leaf is given.
    #[inline]
    fn has_room<M: Media>(leaf: Node<'_>, pm: &M, most: usize) -> bool {
        Self::len(leaf, pm) < most
    }

    /// Puts the key and value words into `out`, in slot order.
    fn entries<M: Media>(leaf: Node<'_>, pm: &M, out: &mut Vec<(u64, u64)>);

    /// Looks for a key. Right under the leaf's lock, or once its version is validated.
    fn find<K: KeyRepr + ?Sized, M: Media>(leaf: Node<'_>, pm: &M, key: &K) -> Option<Found>;

    /// Writes a whole leaf that nothing leads to yet. Nothing is flushed.
    fn fill<M: Media>(leaf: Node<'_>, pm: &M, entries: &[(u64, u64)], next: u64);

    /// The words of a leaf that taking entries out of it in a split overwrites: a number from word 0.
    fn split_words(words: usize) -> usize;

    /// Takes the entries out of a leaf whose keys are not less than `separator`, and makes `next` the next
    /// leaf: in a split, which has protected [`split_words`](Self::split_words).
    fn keep_lower<'t, K: KeyRepr + ?Sized, M: Media>(
        change: &mut Change<'t, M>,
        pm: &M,
        leaf: Node<'t>,
        separator: u64,
        next: u64,
    );

    /// Inserts a pair into a locked leaf that has room. `key` is the key of the pair's key word, which the
    /// leaf does not have.
    fn insert<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, D: Kind<Leaf = Self>>(
        tree: &BTree<K, V, M, D>,
        leaf: Node<'_>,
        key: &K,
        pair: (u64, u64),
    );

    /// Replaces a value word of a locked leaf.
    fn update<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, D: Kind<Leaf = Self>>(
        tree: &BTree<K, V, M, D>,
        leaf: Node<'_>,
        slot: usize,
        value: u64,
    );

    /// Takes an entry out of a locked leaf.
    fn remove<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, D: Kind<Leaf = Self>>(
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

    fn capacity(words: usize) -> usize {
        capacity(words)
    }

    #[inline]
    fn len<M: Media>(leaf: Node<'_>, pm: &M) -> usize {
        leaf.count(pm)
    }

    fn entries<M: Media>(leaf: Node<'_>, pm: &M, out: &mut Vec<(u64, u64)>) {
        out.clear();
        out.extend((0..leaf.count(pm)).map(|i| (leaf.key(pm, i), leaf.value(pm, i))));
    }

    #[inline]
    fn find<K: KeyRepr + ?Sized, M: Media>(leaf: Node<'_>, pm: &M, key: &K) -> Option<Found> {
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

    fn fill<M: Media>(leaf: Node<'_>, pm: &M, entries: &[(u64, u64)], next: u64) {
        leaf.fill_inner(pm, 0, next, entries);
    }

    fn split_words(_words: usize) -> usize {
        HEADER
    }

    fn keep_lower<'t, K: KeyRepr + ?Sized, M: Media>(
        change: &mut Change<'t, M>,
        pm: &M,
        leaf: Node<'t>,
        separator: u64,
        next: u64,
    ) {
        let n = leaf.count(pm);
        let kept = K::read(pm, separator, |key| leaf.rank(pm, n, key, false)).unwrap_or(n);
        change.store(leaf, 0, meta(kept, 0));
        change.store(leaf, 1, next);
    }

    fn insert<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, D: Kind<Leaf = Self>>(
        tree: &BTree<K, V, M, D>,
        leaf: Node<'_>,
        key: &K,
        pair: (u64, u64),
    ) {
        let pm = tree.pm();
        let n = leaf.count(pm);
        let at = leaf.rank(pm, n, key, false);
        let mut change = tree.change(&overwritten_from(leaf, at, n + 1));
        insert_at(&mut change, pm, leaf, at, pair);
        change.commit();
    }

    fn update<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, D: Kind<Leaf = Self>>(
        tree: &BTree<K, V, M, D>,
        leaf: Node<'_>,
        slot: usize,
        value: u64,
    ) {
        // One word could be published without a log; the paper's tree logs the node all the same
        // (section 6.3: "LCB+-Tree does not need to shift entries for update, but ... it FLUSHes the log").
        let mut change = tree.change(&[Overwritten {
            node: leaf,
            from: leaf.value_at(slot),
            words: 1,
        }]);
        change.store(leaf, leaf.value_at(slot), value);
        change.commit();
    }

    fn remove<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, D: Kind<Leaf = Self>>(
        tree: &BTree<K, V, M, D>,
        leaf: Node<'_>,
        slot: usize,
    ) {
        let pm = tree.pm();
        let n = leaf.count(pm);
        let mut change = tree.change(&overwritten_from(leaf, slot, n - 1));
        for i in slot..n - 1 {
            change.store(leaf, leaf.key_at(i), leaf.key(pm, i + 1));
            change.store(leaf, leaf.value_at(i), leaf.value(pm, i + 1));
        }
        change.store(leaf, 0, meta(n - 1, 0));
        change.commit();
    }
}

/// What inserting an entry at `at`, or taking one out there, overwrites in a sorted node that has `n`
/// entries afterwards.
pub fn overwritten_from(node: Node<'_>, at: usize, n: usize) -> [Overwritten<'_>; 3] {
    let words = |from, words| Overwritten { node, from, words };
    [
        words(0, 1),
        words(node.key_at(at), n - at),
        words(node.value_at(at), n - at),
    ]
}

/// Inserts an entry into a sorted node that has room: shifts those from `at` on. A word is read before the
/// store that replaces it, and no word is read that was stored.
pub fn insert_at<'t, M: Media>(
    change: &mut Change<'t, M>,
    pm: &M,
    node: Node<'t>,
    at: usize,
    (key, value): (u64, u64),
) {
    let (n, level) = (node.count(pm), node.level(pm));
    for i in (at..n).rev() {
        change.store(node, node.key_at(i + 1), node.key(pm, i));
        change.store(node, node.value_at(i + 1), node.value(pm, i));
    }
    change.store(node, node.key_at(at), key);
    change.store(node, node.value_at(at), value);
    change.store(node, 0, meta(n + 1, level));
}
