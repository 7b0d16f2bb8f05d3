//! How commits are cut into frames, and when a full state is due.

use super::*;

fn changes(all: &[(u64, usize)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (stamp, bytes) in all {
        let value = vec![7; *bytes];
        let change = Change {
            stamp: *stamp,
            wall: 1,
            key: b"key",
            value: Some(&value),
        };
        change.encode(&mut out);
    }
    out
}

/// The changes and the commits of each frame.
fn cut(all: &[(u64, usize)]) -> Vec<(usize, u64)> {
    let bytes = changes(all);
    let mut together = Vec::new();
    let cut = frames(&bytes).map(|(mut frame, commits)| {
        together.extend_from_slice(frame);
        let mut changes = 0;
        while Change::decode(&mut frame).is_some() {
            changes += 1;
        }
        (changes, commits)
    });
    let cut = cut.collect();
    assert!(together == bytes);
    cut
}

#[test]
fn no_commit_is_cut_in_two() {
    assert_eq!(cut(&[]), []);
    assert_eq!(cut(&[(5, 3), (5, 3), (6, 3)]), [(3, 2)]);
    let much = 400 << 10;
    let all = [1, 1, 1, 2, 2, 3, 4, 4, 4, 4, 4, 4].map(|stamp| (stamp, much));
    assert_eq!(cut(&all), [(3, 1), (3, 2), (6, 1)]);
    assert_eq!(
        cut(&[(1, FRAME), (2, FRAME), (3, 0)]),
        [(1, 1), (1, 1), (1, 1)]
    );
}

#[test]
fn the_last_stamp_is_that_of_the_last_change() {
    assert_eq!(last_stamp(&[]), None);
    assert_eq!(last_stamp(&changes(&[(5, 3), (5, 3), (9, 3)])), Some(9));
}

#[test]
fn a_full_state_is_due_when_none_is_there_or_long_ago() {
    let mut options = ArchiveOptions::new("archive");
    options.full_every = Some(Duration::from_secs(10));
    let is_due = |last, now| is_full_due(&options, last, now);
    assert!(is_due(None, 0));
    for (now, expected) in [(100_000, false), (109_999, false), (110_000, true)] {
        assert_eq!(is_due(Some(100_000), now), expected, "{now}");
    }
    // A clock that was ahead, and one that was a little.
    assert!(is_due(Some(100_000), 90_000) && !is_due(Some(100_000), 90_001));
    options.full_every = None;
    assert!(is_full_due(&options, None, 0));
    assert!(!is_full_due(&options, Some(0), u64::MAX));
    options.full_every = Some(Duration::MAX);
    assert!(!is_full_due(&options, Some(0), u64::MAX - 1));
}
