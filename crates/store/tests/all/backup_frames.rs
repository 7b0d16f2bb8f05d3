//! Backups that are made by hand: their sums are right, and what they have is not.

use crate::common::{Fixture, TREE, restore};
use bristlecone_store::{BACKUP_FORMAT, BackupError, MAX_KEY_BYTES, MAX_VALUE_BYTES, is_backup};

const KEYSPACE: u8 = 1;
const ENTRIES: u8 = 2;
const END: u8 = 3;
/// Bytes of the head of a backup.
const HEAD: usize = 24;

fn head(format: u32) -> Vec<u8> {
    let mut head = b"BCSTORE\n".to_vec();
    head.extend(format.to_le_bytes());
    head.extend(77_u64.to_le_bytes());
    head.extend(crc32c::crc32c(&head).to_le_bytes());
    assert_eq!(head.len(), HEAD);
    head
}

fn frame(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut frame = vec![kind];
    frame.extend((content.len() as u32).to_le_bytes());
    frame.extend(content);
    frame.extend(crc32c::crc32c(&frame).to_le_bytes());
    frame
}

fn keyspace(number: u32, name: &[u8]) -> Vec<u8> {
    frame(KEYSPACE, &[&number.to_le_bytes()[..], name].concat())
}

fn entry(number: u32, key: &[u8], value: &[u8], expiry: u64) -> Vec<u8> {
    let mut entry = number.to_le_bytes().to_vec();
    entry.extend((key.len() as u32).to_le_bytes());
    entry.extend((value.len() as u32).to_le_bytes());
    entry.extend(expiry.to_le_bytes());
    entry.extend(key);
    entry.extend(value);
    entry
}

fn end(keyspaces: u64, entries: u64) -> Vec<u8> {
    [keyspaces.to_le_bytes(), entries.to_le_bytes()].concat()
}

/// Why it is refused, and after how many bytes.
fn refused(f: &Fixture, frames: &[&[u8]]) -> (String, u64) {
    let stream = [&head(BACKUP_FORMAT), &frames.concat()[..]].concat();
    let pool = f.new_pool();
    let restored = restore(&pool, "r", TREE, &f.options, &mut &stream[..]);
    assert!(pool.roots().is_empty());
    match restored.unwrap_err() {
        BackupError::Damaged { what, at } => (what, at),
        e => panic!("{e}"),
    }
}

#[test]
fn a_backup_that_is_made_by_hand_is_restored() {
    let f = Fixture::new(TREE);
    let first = [
        entry(5, b"key", b"value", 0),
        entry(6, b"", b"", 9_000),
        entry(6, b"over", b"v", 1),
    ];
    let stream = [
        head(BACKUP_FORMAT),
        keyspace(5, b"five"),
        keyspace(6, b"six"),
        frame(ENTRIES, &first.concat()),
        frame(ENTRIES, &entry(5, b"last", &[7; 3_000], 0)),
        frame(END, &end(2, 4)),
    ]
    .concat();
    assert!(is_backup(&stream) && is_backup(&stream[..8]) && !is_backup(&stream[..7]));
    f.hands.set(1_000);
    let pool = f.new_pool();
    let restored = restore(&pool, "r", TREE, &f.options, &mut &stream[..]);
    let (store, report) = restored.unwrap();
    assert_eq!((report.keyspaces, report.entries), (2, 4));
    assert_eq!((report.timestamp, report.bytes), (77, stream.len() as u64));
    let [five, six] = ["five", "six"].map(|name| store.find_keyspace(name).unwrap());
    assert_eq!(store.get(&five, b"key").unwrap().unwrap(), b"value");
    assert_eq!(store.get(&five, b"last").unwrap().unwrap(), [7; 3_000]);
    let empty = store.get_with(&six, b"", |entry| (entry.value.len(), entry.expires_at));
    assert_eq!(empty.unwrap(), Some((0, Some(9_000))));
    assert_eq!(store.get(&six, b"over").unwrap(), None);
    store.check().unwrap();
}

#[test]
fn a_backup_of_another_version_is_told() {
    let f = Fixture::new(TREE);
    let pool = f.new_pool();
    let stream = head(BACKUP_FORMAT + 1);
    let restored = restore(&pool, "r", TREE, &f.options, &mut &stream[..]);
    match restored.unwrap_err() {
        BackupError::Version(e) => assert_eq!(e.found, u64::from(BACKUP_FORMAT) + 1),
        e => panic!("{e}"),
    }
}

#[test]
fn the_end_says_what_there_was() {
    let f = Fixture::new(TREE);
    let names = keyspace(5, b"five");
    let entries = frame(ENTRIES, &entry(5, b"key", b"value", 0));
    let right = end(1, 1);
    let longer = [&right[..], &[0]].concat();
    for wrong in [
        &end(2, 1)[..],
        &end(1, 2),
        &end(0, 0),
        &right[..15],
        &longer,
        b"",
    ] {
        let end = frame(END, wrong);
        let (what, at) = refused(&f, &[&names, &entries, &end]);
        assert_eq!(what, "it has not what its end says");
        assert_eq!(at as usize, HEAD + names.len() + entries.len() + end.len());
    }
    let (what, at) = refused(&f, &[&names, &entries]);
    assert_eq!(what, "it ends too early");
    assert_eq!(at as usize, HEAD + names.len() + entries.len());
}

#[test]
fn frames_that_no_backup_has_are_damage() {
    let f = Fixture::new(TREE);
    let names = keyspace(5, b"five");
    let whole = entry(5, b"key", b"value", 0);
    let of_another = [&whole[..], &entry(6, b"key", b"value", 0)].concat();
    for (wrong, expected) in [
        (frame(KEYSPACE, &[5, 0, 0]), "a keyspace without a name"),
        (keyspace(6, b"\xFF"), "a keyspace without a name"),
        (frame(ENTRIES, &of_another), "an entry of no keyspace"),
        (
            frame(ENTRIES, &whole[..whole.len() - 1]),
            "an entry that leaves its frame",
        ),
        (
            frame(ENTRIES, &[&whole[..], &[1]].concat()),
            "an entry that leaves its frame",
        ),
        (frame(9, b""), "a frame of kind 9"),
    ] {
        let (what, at) = refused(&f, &[&names, &wrong, &frame(END, &end(1, 1))]);
        assert_eq!(what, expected);
        assert_eq!(at as usize, HEAD + names.len() + wrong.len());
    }
}

/// The longest that a frame can be has a full one's bytes, and one entry more.
#[test]
fn no_frame_claims_more_than_it_can_have() {
    let f = Fixture::new(TREE);
    let most = (256 << 10) + 20 + MAX_KEY_BYTES + MAX_VALUE_BYTES;
    for (len, expected) in [
        (most, "it ends too early"),
        (most + 1, "a frame claims more bytes than an entry can have"),
    ] {
        let mut begun = vec![ENTRIES];
        begun.extend((len as u32).to_le_bytes());
        let (what, at) = refused(&f, &[&begun]);
        assert_eq!((&*what, at), (expected, HEAD as u64 + 5));
    }
}

/// Frames hold some entries each: neither one, which takes more space, nor all, which takes memory.
#[test]
fn a_frame_has_many_entries_and_not_all() {
    let f = Fixture::new(TREE);
    for i in 0..1_000_u32 {
        f.store.put(&f.k, &i.to_be_bytes(), &[7; 1_000]).unwrap();
    }
    let mut stream = Vec::new();
    f.store.backup(&mut stream).unwrap();
    let (mut rest, mut frames, mut longest) = (&stream[HEAD..], 0, 0);
    while let Some((head, after)) = rest.split_first_chunk::<5>() {
        let len = u32::from_le_bytes(*head.last_chunk().unwrap()) as usize;
        longest = longest.max(len);
        frames += 1;
        rest = &after[len + 4..];
    }
    assert!((5..20).contains(&frames), "{frames}");
    assert!(longest < 300 << 10, "{longest}");
}
