//! What is found in files that are made by hand, whole and damaged.

use super::*;
use crate::archive::format::{Token, frame};
use bristlecone_index::clustered::Mark;

const UUID: Uuid = [7; 16];
/// Bytes of a file that has nothing but its head.
const HEAD: usize = FRAME_HEAD + HEAD_BYTES + FRAME_END;

fn head(is_state: bool, from: u64) -> Head {
    Head {
        format: FORMAT,
        is_state,
        uuid: UUID,
        from,
        time: 90,
        wall: 1_000,
        archive: 5,
    }
}

/// A file, and the number of its next frame.
struct Made(Vec<u8>, u32);

impl Made {
    fn new(head: &Head) -> Self {
        let mut made = Self(Vec::new(), 0);
        made.frame(Kind::Head, |out| head.encode(out));
        made
    }

    /// Returns where the frame begins.
    fn frame(&mut self, kind: Kind, write: impl FnOnce(&mut Vec<u8>)) -> usize {
        let at = self.0.len();
        frame(&mut self.0, (&UUID, self.1), kind, write);
        self.1 += 1;
        at
    }

    fn commits(&mut self, stamps: &[u64]) -> usize {
        self.frame(Kind::Commits, |out| {
            for stamp in stamps {
                change(*stamp, b"value").encode(out);
            }
        })
    }

    fn mark(&mut self, below: u64) -> usize {
        self.frame(Kind::Mark, |out| end(below).encode(out))
    }
}

fn change(stamp: u64, value: &[u8]) -> Change<'_> {
    Change {
        stamp,
        wall: 1,
        key: b"key",
        value: Some(value),
    }
}

fn end(below: u64) -> Until {
    Until {
        below,
        mark: Some(Mark {
            generation: 1,
            stamp: below,
        }),
        wall: 1_000 + below,
        session: 0,
        count: below - 1,
        token: Token {
            sequence: below,
            token: 3,
        },
    }
}

/// An empty directory, in memory where there is one.
fn empty() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

/// A directory with these files of commits, by their numbers.
fn directory(files: &[(u32, &[u8])]) -> tempfile::TempDir {
    let dir = empty();
    for (number, bytes) in files {
        std::fs::write(dir.path().join(format!("{number:08}.commits")), bytes).unwrap();
    }
    dir
}

/// The only file of an archive, as it is when it is opened, and after it was verified.
fn looked_at(bytes: &[u8]) -> [ArchiveFile; 2] {
    let dir = directory(&[(1, bytes)]);
    let mut archive = Archive::open(dir.path()).unwrap();
    let opened = archive.files.remove(0);
    let mut verified = opened.clone();
    verified.verify(&mut |_| {}).unwrap();
    [opened, verified]
}

/// Where the damage of the only file begins, and what it is; and up to where it is complete.
fn found(bytes: &[u8]) -> (Option<(u64, String)>, u64) {
    let [_, verified] = looked_at(bytes);
    (verified.damage, verified.below)
}

fn damage(at: usize, what: &str) -> Option<(u64, String)> {
    Some((at as u64, what.to_owned()))
}

fn unreadable(bytes: &[u8]) -> (String, bool) {
    let dir = directory(&[(3, bytes)]);
    let archive = Archive::open(dir.path()).unwrap();
    assert!(archive.files.is_empty());
    let file = &archive.unreadable[0];
    assert!(file.path.ends_with("00000003.commits") && file.number == 3);
    (file.what.clone(), file.is_empty)
}

#[test]
fn only_files_with_the_names_of_an_archives_files_are_its() {
    let dir = empty();
    let made = Made::new(&head(true, 0)).0;
    for name in [
        "lock",
        "1.state",
        "000000001.state",
        "00000001.other",
        "0000000x.state",
        "00000001",
    ] {
        std::fs::write(dir.path().join(name), &made).unwrap();
    }
    assert!(Archive::find(dir.path()).unwrap().is_none());
    let e = Archive::open(dir.path()).unwrap_err();
    assert!(matches!(e, ArchiveError::NotAnArchive { .. }), "{e}");
    std::fs::write(dir.path().join("00000012.state"), &made).unwrap();
    std::fs::write(
        dir.path().join("00000003.commits"),
        Made::new(&head(false, 1)).0,
    )
    .unwrap();
    let archive = Archive::open(dir.path()).unwrap();
    let numbers: Vec<_> = archive.files.iter().map(|file| file.number).collect();
    assert_eq!((numbers, archive.last_number), (vec![3, 12], 12));
    assert!(archive.files[0].path.ends_with("00000003.commits"));
}

#[test]
fn a_directory_in_the_place_of_a_file_is_an_error() {
    let dir = empty();
    let path = dir.path().join("00000001.commits");
    std::fs::create_dir(&path).unwrap();
    let e = Archive::open(dir.path()).unwrap_err();
    let ArchiveError::Io { path: found, .. } = e else {
        panic!("{e}");
    };
    assert_eq!(found, path);
}

#[test]
fn the_head_says_what_a_file_is() {
    let kind = |is_state, from| {
        let [file, _] = looked_at(&Made::new(&head(is_state, from)).0);
        assert_eq!((file.from, file.begun, file.time), (from, 1_000, 90));
        assert_eq!((file.below, file.until, file.entries), (0, 0, 0));
        assert!(!file.counts() && file.damage.is_none());
        assert_eq!((file.bytes, file.is_state()), (HEAD as u64, is_state));
        file.kind.to_string()
    };
    assert_eq!(kind(true, 0), "full state");
    assert_eq!(kind(true, 1), "incremental state");
    assert_eq!(kind(false, 0), "commits");
    assert_eq!(kind(false, 9), "commits");
}

#[test]
fn a_file_counts_if_it_has_something() {
    let [file, _] = looked_at(&Made::new(&head(false, 5)).0);
    let counts = |kind, from, below| {
        let file = ArchiveFile {
            kind,
            from,
            below,
            ..file.clone()
        };
        file.counts()
    };
    assert!(counts(FileKind::Commits, 5, 6));
    assert!(!counts(FileKind::Commits, 5, 5));
    assert!(!counts(FileKind::Commits, 5, 0));
    assert!(counts(FileKind::IncrementalState, 5, 6));
    assert!(!counts(FileKind::IncrementalState, 5, 5));
    assert!(counts(FileKind::FullState, 0, 1));
    assert!(!counts(FileKind::FullState, 0, 0));
}

#[test]
fn a_file_that_ends_in_its_head_is_told_from_one_whose_head_is_damaged() {
    let whole = Made::new(&head(false, 1)).0;
    assert_eq!(whole.len(), HEAD);
    for len in 0..HEAD {
        let expected = ("it ends in its head".to_owned(), true);
        assert_eq!(unreadable(&whole[..len]), expected, "{len}");
    }
    for at in 0..HEAD {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        let expected = ("its head is damaged".to_owned(), false);
        assert_eq!(unreadable(&bytes), expected, "byte {at}");
    }
    // A right sum does not make a head of it.
    let content = |out: &mut Vec<u8>| head(false, 1).encode(out);
    for (kind, number) in [(Kind::Mark, 0), (Kind::Head, 1)] {
        let mut bytes = Vec::new();
        frame(&mut bytes, (&UUID, number), kind, content);
        assert_eq!(unreadable(&bytes).0, "its head is damaged");
    }
}

/// A later version may have more to say at the beginning.
#[test]
fn another_version_is_told_however_long_its_head_is() {
    for (more, is_told) in [(0, true), (MOST_HEAD - HEAD_BYTES, true), (4_097, false)] {
        let mut made = Made(Vec::new(), 0);
        let later = Head {
            format: FORMAT + 1,
            ..head(false, 1)
        };
        made.frame(Kind::Head, |out| {
            later.encode(out);
            out.resize(out.len() + more, 0);
        });
        if !is_told {
            assert_eq!(unreadable(&made.0).0, "its head is damaged");
            continue;
        }
        let dir = directory(&[(1, &made.0)]);
        match Archive::open(dir.path()).unwrap_err() {
            ArchiveError::Version { path, version } => {
                assert!(path.ends_with("00000001.commits"));
                assert_eq!(version.found, u64::from(FORMAT) + 1);
            }
            e => panic!("{more}: {e}"),
        }
    }
}

#[test]
fn files_of_another_archive_are_not_its() {
    let first = Made::new(&head(false, 1)).0;
    let of_another_store = Head {
        uuid: [8; 16],
        ..head(false, 1)
    };
    let of_another_archive = Head {
        archive: 6,
        ..head(false, 1)
    };
    let mut bytes = Vec::new();
    let content = |out: &mut Vec<u8>| of_another_store.encode(out);
    frame(&mut bytes, (&[8; 16], 0), Kind::Head, content);
    let another = Made::new(&of_another_archive).0;
    let dir = directory(&[(1, &first), (2, &bytes), (3, &another), (4, &first)]);
    let archive = Archive::open(dir.path()).unwrap();
    let numbers: Vec<_> = archive.files.iter().map(|file| file.number).collect();
    assert_eq!(
        (numbers, archive.uuid, archive.number),
        (vec![1, 4], UUID, 5)
    );
    let others = archive.unreadable.iter();
    let others: Vec<_> = others
        .map(|file| (file.number, &*file.what, file.is_empty))
        .collect();
    let what = "it is of another archive";
    assert_eq!(others, [(2, what, false), (3, what, false)]);
}

/// Only the end of a file is read when the archive is opened.
#[test]
fn the_last_mark_says_how_far_a_file_is_complete() {
    let mut made = Made::new(&head(false, 1));
    let first = made.commits(&[1, 2, 3]);
    made.mark(4);
    made.commits(&[5]);
    made.mark(6);
    for file in looked_at(&made.0) {
        assert_eq!((file.below, file.until, file.entries), (6, 1_006, 5));
        assert_eq!((file.end, file.was_below), (end(6), 6));
        assert!(file.counts() && file.damage.is_none());
    }
    let mut torn = made.0.clone();
    torn[first + FRAME_HEAD] ^= 1;
    let [opened, verified] = looked_at(&torn);
    assert_eq!((opened.below, opened.damage), (6, None));
    let expected = damage(first, "a frame fails its checksum");
    assert_eq!((verified.below, verified.damage), (0, expected));
    assert_eq!(verified.was_below, 6);
}

#[test]
fn what_comes_after_the_last_mark_is_not_complete() {
    let mut made = Made::new(&head(false, 1));
    made.commits(&[1, 2]);
    made.mark(3);
    // As long as a mark.
    let value = [1; MARK_BYTES - 24 - 3];
    made.frame(Kind::Commits, |out| change(4, &value).encode(out));
    for file in looked_at(&made.0) {
        assert_eq!((file.below, file.end, file.damage), (3, end(3), None));
    }
    made.mark(9);
    let at = made.mark(10);
    let mut torn = made.0.clone();
    torn[at + FRAME_HEAD] ^= 1;
    for file in looked_at(&torn) {
        assert_eq!(
            (file.below, file.damage.map(|(at, _)| at)),
            (9, Some(at as u64))
        );
    }
    let [opened, _] = looked_at(&torn);
    assert_eq!(opened.was_below, u64::MAX);
}

#[test]
fn what_no_archive_has_is_damage_though_its_sum_is_right() {
    let of_frame = |kind, content: &[u8]| {
        let mut made = Made::new(&head(false, 5));
        made.commits(&[5]);
        made.mark(6);
        let at = made.frame(kind, |out| out.extend(content));
        made.mark(9);
        let (found, below) = found(&made.0);
        assert_eq!(below, if found.is_some() { 6 } else { 9 });
        found.map(|(found, what)| {
            assert_eq!(found, at as u64);
            what
        })
    };
    let changes = |stamps: &[u64]| {
        let mut out = Vec::new();
        for stamp in stamps {
            change(*stamp, b"v").encode(&mut out);
        }
        out
    };
    let is = |what: &str| Some(what.to_owned());
    assert_eq!(of_frame(Kind::Commits, &changes(&[5, 7, 7, 8])), None);
    let out_of_order = is("a commit is out of order");
    assert_eq!(of_frame(Kind::Commits, &changes(&[7, 6])), out_of_order);
    assert_eq!(of_frame(Kind::Commits, &changes(&[4])), out_of_order);
    let leaves = is("a change leaves its frame");
    let cut = changes(&[7, 8]);
    assert_eq!(of_frame(Kind::Commits, &cut[..cut.len() - 1]), leaves);
    let mut range = Vec::new();
    let keys = KeysBetween {
        low: b"a",
        high: Some(b"b"),
    };
    keys.encode(&mut range);
    let leaves_range = is("a range leaves its frame");
    assert_eq!(of_frame(Kind::Range, &range), None);
    assert_eq!(
        of_frame(Kind::Range, &range[..range.len() - 1]),
        leaves_range
    );
    range.extend(changes(&[0, 0]));
    assert_eq!(of_frame(Kind::Range, &range), None);
    range.pop();
    assert_eq!(of_frame(Kind::Range, &range), leaves);
    let short = is("a mark is too short");
    assert_eq!(of_frame(Kind::Mark, &[0; MARK_BYTES - 1]), short);
    let mut second = Vec::new();
    head(false, 5).encode(&mut second);
    assert_eq!(of_frame(Kind::Head, &second), is("it has two heads"));
}

#[test]
fn a_frame_that_is_missing_or_twice_there_is_damage() {
    let mut made = Made::new(&head(false, 1));
    let first = made.commits(&[1]);
    let second = made.commits(&[2]);
    made.mark(3);
    let [before, frame, after] = [&made.0[..first], &made.0[first..second], &made.0[second..]];
    let expected = damage(first, "frame 2 is where 1 should be");
    assert_eq!(found(&[before, after].concat()), (expected, 0));
    let expected = damage(second, "frame 1 is where 2 should be");
    assert_eq!(
        found(&[before, frame, frame, after].concat()),
        (expected, 0)
    );
}

/// As a crash leaves it.
#[test]
fn a_file_that_ends_anywhere_is_complete_up_to_its_last_mark() {
    let mut made = Made::new(&head(false, 1));
    made.commits(&[1]);
    made.mark(2);
    let marked = made.0.len();
    made.commits(&[2, 3]);
    made.mark(4);
    for len in marked..made.0.len() {
        let cut = &made.0[..len];
        for file in looked_at(cut) {
            assert_eq!((file.below, file.damage), (2, None), "{len}");
        }
        // The file system may have made it longer already.
        for zeros in [1, 15, 16, 17, 500] {
            if len == marked {
                let longer = [cut, &vec![0; zeros]].concat();
                assert_eq!(found(&longer), (None, 2), "{zeros}");
            }
        }
    }
    assert_eq!(found(&made.0), (None, 4));
}

#[test]
fn whole_frames_behind_the_end_of_another_are_damage() {
    let mut made = Made::new(&head(false, 1));
    made.mark(2);
    let at = made.commits(&[2, 3]);
    let last = made.mark(4);
    let [before, frame, mark] = [&made.0[..at], &made.0[at..last], &made.0[last..]];
    for len in 1..frame.len() {
        let (found, below) = found(&[before, &frame[..len], mark].concat());
        assert_eq!(found.map(|(at, _)| at), Some(at as u64), "{len}");
        assert_eq!(below, 2);
    }
    for zeros in [16, 100] {
        let (found, _) = found(&[before, &vec![0; zeros], mark].concat());
        assert_eq!(found, damage(at, "a frame's head is damaged"));
    }
}

/// A value may be a file of an archive.
#[test]
fn what_only_looks_like_a_frame_in_a_value_is_no_frame() {
    let mut inner = Vec::new();
    frame(&mut inner, (&[9; 16], 1), Kind::Commits, |out| {
        out.extend([1; 40]);
    });
    let mut made = Made::new(&head(false, 1));
    made.mark(2);
    let value = [&inner[..], &inner, b"and more"].concat();
    let at = made.frame(Kind::Commits, |out| change(2, &value).encode(out));
    for len in at + 1..made.0.len() {
        assert_eq!(found(&made.0[..len]), (None, 2), "{len}");
    }
}

#[test]
fn a_frame_whose_length_is_damaged_was_not_cut_off() {
    let mut made = Made::new(&head(false, 1));
    made.mark(2);
    let at = made.commits(&[2, 3]);
    for bit in 0..24 {
        let mut bytes = made.0.clone();
        bytes[at + 12 + bit / 8] ^= 1 << (bit % 8);
        let expected = damage(at, "a frame fails its checksum");
        assert_eq!(found(&bytes), (expected, 2), "bit {bit}");
    }
    let mut bytes = made.0.clone();
    bytes[at] ^= 1;
    let expected = damage(at, "a frame's head is damaged");
    assert_eq!(found(&bytes), (expected, 2));
}

/// The file is looked through in pieces, and a frame may lie across two of them.
#[test]
fn a_whole_frame_is_found_however_far_behind_it_is() {
    let mut made = Made::new(&head(false, 1));
    made.mark(2);
    let at = made.0.len();
    let mut begun = Vec::new();
    frame(&mut begun, (&UUID, 2), Kind::Commits, |out| {
        out.resize(4 * PIECE, 1);
    });
    let mut behind = Vec::new();
    frame(&mut behind, (&UUID, 9), Kind::Commits, |_| {});
    assert_eq!(behind.len(), FRAME_HEAD + FRAME_END);
    for distance in [
        30,
        PIECE - 3,
        PIECE - 2,
        PIECE - 1,
        PIECE,
        PIECE + 1,
        PIECE + 2,
        2 * PIECE - 4,
        2 * PIECE + 7,
    ] {
        let mut bytes = [&made.0[..], &begun[..distance]].concat();
        assert_eq!(found(&bytes), (None, 2), "{distance}");
        bytes.extend(&behind);
        let expected = damage(at, "a frame fails its checksum");
        assert_eq!(found(&bytes), (expected, 2), "{distance}");
        // With something behind it.
        bytes.extend([1; 9]);
        assert!(found(&bytes).0.is_some(), "{distance}");
    }
}

#[test]
fn verifying_says_how_many_bytes_were_read() {
    let mut first = Made::new(&head(false, 1));
    let mut ends = vec![first.commits(&[1, 2])];
    ends.push(first.mark(3));
    ends.push(first.0.len());
    let mut second = Made::new(&head(false, 3));
    let of_second = [second.mark(3), second.mark(4), second.0.len()];
    ends.remove(0);
    ends.extend(of_second[1..].iter().map(|at| first.0.len() + at));
    let dir = directory(&[(1, &first.0), (2, &second.0)]);
    let mut archive = Archive::open(dir.path()).unwrap();
    let mut told = Vec::new();
    archive
        .verify(&mut |bytes| told.push(bytes as usize))
        .unwrap();
    assert_eq!(told, ends);
    assert_eq!(archive.bytes() as usize, first.0.len() + second.0.len());
}
