//! Recovery from each state, torn descriptors and damaged areas.

use super::*;

#[test]
fn recovery_rolls_forward_and_back() {
    let field = Field::<Medium>::new(1, 3, 3);
    let words = [(1, 100, 11), (2, 200, 22)];
    // Pointers in both words, in one, in none; and a conditional one.
    for (state, forward) in [
        (State::Undecided, false),
        (State::Failed, false),
        (State::Succeeded, true),
    ] {
        for pointers in 0..4 {
            let status = field.forge(2, state, &words, 0);
            let own = pointer(2, status.generation());
            for (bit, (word, old, new)) in words.into_iter().enumerate() {
                let there = if forward { new } else { old };
                field.set(word, if pointers >> bit & 1 == 1 { own } else { there });
            }
            let (_, recovered) = field.reopen().unwrap();
            let expected = words.map(|(_, old, new)| if forward { new } else { old });
            assert_eq!(
                [field.get(1), field.get(2)],
                expected,
                "{state:?}, {pointers}"
            );
            let n = u64::from((pointers as u32).count_ones());
            let done = if forward { (n, 0) } else { (0, n) };
            assert_eq!((recovered.forward, recovered.back), done);
            let (_, again) = field.reopen().unwrap();
            assert_eq!(again, Recovered::default(), "it may come again");
        }
        let status = field.forge(2, state, &words, 0);
        field.set(1, conditional(2, status.generation(), 0, 77));
        field.reopen().unwrap();
        assert_eq!(
            field.get(1),
            100,
            "a late attempt at an operation that is {state:?}"
        );
    }
}

#[test]
fn recovery_releases_what_policies_name() {
    let policies = [
        (Policy::None, false, false),
        (Policy::FreeOne, true, true),
        (Policy::FreeOldOnSuccess, true, false),
        (Policy::FreeNewOnFailure, false, true),
    ];
    let states = [
        State::Undecided,
        State::Failed,
        State::Succeeded,
        State::Free,
    ];
    for ((policy, frees_old, frees_new), state) in policies
        .into_iter()
        .flat_map(|policy| states.map(|state| (policy, state)))
    {
        let succeeded = state == State::Succeeded;
        let of_old = frees_old && succeeded;
        let of_new = frees_new && !succeeded && state != State::Free;
        let field = Field::<Medium>::new(1, 2, 2);
        let block = || field.heap.alloc(64).unwrap().get();
        let (old, new) = (block(), block());
        let goes = [(of_old, old), (of_new, new)].into_iter();
        let goes = goes.filter(|(goes, _)| *goes);
        let blocks: Vec<u64> = goes.map(|(_, block)| block).collect();
        let status = field.forge(1, state, &[(0, old, new), (1, 1, 2)], policy as u64);
        field.set(0, pointer(1, status.generation()));
        let (swaps, recovered) = field.reopen().unwrap();
        let what = format!("{policy:?}, {state:?}");
        assert_eq!(field.seen.take(), (blocks.clone(), vec![]), "{what}");
        assert_eq!(recovered.released, blocks.len() as u64, "{what}");
        let status = Status(swaps.status(1).load(swaps.pm(), Ordering::Relaxed));
        assert!(status.is(State::Free), "{what}: {status:?}");
        field.reopen().unwrap();
        assert_eq!(field.seen.take().0, Vec::<u64>::new(), "{what}: once");
    }
}

/// A descriptor whose lines are of two uses was never durable: no word leads to it, and its blocks
/// are not its own.
#[test]
fn a_torn_descriptor_does_not_count() {
    let field = Field::<Medium>::new(1, 2, 4);
    let words = [(1, 100, 11), (2, 200, 22), (3, 300, 33)];
    let status = field.forge(0, State::Succeeded, &words, Policy::FreeOne as u64);
    let pm = field.swaps.pm();
    let other = status.generation().wrapping_add(1) & GENERATION;
    field
        .swaps
        .generation(0, 1)
        .store(pm, other, Ordering::Relaxed);
    let (swaps, recovered) = field.reopen().unwrap();
    assert_eq!(recovered, Recovered::default());
    // The next use has a generation that neither line has.
    let next = swaps.next[0].load(Ordering::Relaxed);
    assert!(next != other && next != status.generation(), "{next:#x}");
}

#[test]
fn damaged_areas_are_refused() {
    let field = Field::<Medium>::new(1, 2, 3);
    let (pm, at) = (field.swaps.pm(), field.swaps.offset());
    let with = |off: u64, value: u64, what: &str| {
        let (word, status) = (field.swaps.word(off), field.swaps.status(1));
        let undecided = status.load(pm, Ordering::Relaxed);
        let before = word.load(pm, Ordering::Relaxed);
        word.store(pm, value, Ordering::Relaxed);
        let refused = field.reopen().expect_err(what);
        assert!(refused.contains(what), "{refused}");
        word.store(pm, before, Ordering::Relaxed);
        field.reopen().expect("whole again");
        status.store(pm, undecided, Ordering::Relaxed);
    };
    with(at, 1, "magic 0x1");
    with(at + 8, 0, "0 descriptors");
    with(at + 8, 2 | 99 << 32 | 2 << 48, "99 words");
    with(at + 8, 1000 | 3 << 32 | 64 << 48, "descriptor area");
    field.forge(1, State::Succeeded, &[(0, 0, 1), (1, 100, 2)], 0);
    let descriptor = field.swaps.descriptor_at(1);
    with(descriptor, 7, "status");
    with(descriptor, 2 | 5 << 3, "status");
    with(descriptor + 8, u64::MAX, "descriptor 1: no operation");
    with(descriptor + 8, at + 64, "descriptor 1: no operation");
    with(
        descriptor + 8,
        field.place(0) + 1,
        "descriptor 1: no operation",
    );
    with(descriptor + 16, DIRTY, "descriptor 1: no operation");
    field.forge(
        1,
        State::Succeeded,
        &[(0, 1 << 50, 1)],
        Policy::FreeOne as u64,
    );
    assert!(field.reopen().unwrap_err().contains("0x4000000000000"));
    assert!(DescriptorPool::<Medium>::open(&field.heap, at + 8, Box::new(NoBlocks)).is_err());
}

/// Damage of the last descriptor is found before the first one's words are changed.
#[test]
fn an_area_that_is_refused_is_left_as_it_was() {
    let field = Field::<Medium>::new(1, 3, 2);
    let blocks = [(3, 1 << 40, 1 << 41)];
    for (words, policies, what) in [
        (&[(3, DIRTY, 1)][..], 0, "no operation"),
        (&blocks, 1, "recycle"),
    ] {
        let status = field.forge(0, State::Succeeded, &[(1, 100, 11), (2, 200, 22)], 0);
        field.set(1, pointer(0, status.generation()));
        field.forge(2, State::Undecided, words, policies);
        let refused = field.reopen().unwrap_err();
        assert!(
            refused.contains("descriptor 2") && refused.contains(what),
            "{refused}"
        );
        assert_eq!(field.get(1), pointer(0, status.generation()));
        field.forge(2, State::Free, &[], 0);
        let (_, recovered) = field.reopen().unwrap();
        assert_eq!((recovered.forward, field.get(1)), (1, 11));
        field.set(1, 100);
    }
}

/// Flagged values that lead to no operation, as a damaged file may hold, are an error for checks,
/// and values for other reads.
#[test]
fn what_leads_nowhere_is_a_value_without_its_flags() {
    let field = Field::<Medium>::new(1, 3, 3);
    assert!(
        field.swap(&[(0, 0, 1), (1, 100, 2)]),
        "the last descriptor was used"
    );
    let used = (0..3).map(|n| {
        Status(
            field
                .swaps
                .status(n)
                .load(field.swaps.pm(), Ordering::Relaxed),
        )
        .generation()
    });
    let mut strays = vec![
        DIRTY | 5,
        FLAGS | 5,
        MULTI | 0xFFFF,
        CONDITIONAL | 0xFFFF << 3,
        MULTI | CONDITIONAL,
    ];
    for (number, used) in used.enumerate() {
        for generation in [used, used.wrapping_sub(1) & GENERATION, used + 1] {
            strays.push(pointer(number, generation));
            strays.extend((0..8).map(|entry| conditional(number, generation, entry, 3)));
        }
    }
    assert_eq!(field.swaps.check(field.word(3)), Ok(300));
    for stray in strays {
        let value = stray & !FLAGS;
        field.set(3, stray);
        let refused = field.swaps.check(field.word(3)).unwrap_err();
        assert!(refused.contains(&format!("{stray:#x}")), "{refused}");
        assert_eq!(field.swaps.read(field.word(3)), value);
        field.set(3, stray);
        assert!(!field.swap(&[(3, value + 1, 7), (4, 400, 400)]));
        field.set(3, stray);
        assert!(field.swap(&[(4, 400, 400), (3, value, 7)]), "{stray:#x}");
        assert_eq!(field.get(3), 7);
    }
    assert_eq!(field.swaps.counts().helps, 0);
}

/// Areas and words with anything in them: an error, or a pool that works and whose words have
/// values.
#[test]
fn random_damage_is_an_error_or_has_values() {
    let field = Field::<Medium>::new(1, 3, 4);
    let (pm, at) = (field.swaps.pm(), field.swaps.offset());
    let header = [at, at + 8].map(|at| field.swaps.word(at).load(pm, Ordering::Relaxed));
    let mut state = 1_u64;
    let mut random = |n: u64| {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        (state >> 33) % n
    };
    let (mut refused, mut opened) = (0, 0);
    for round in 0..5_000 {
        for (i, value) in header.into_iter().enumerate() {
            field
                .swaps
                .word(at + i as u64 * 8)
                .store(pm, value, Ordering::Relaxed);
        }
        for number in 0..3 {
            let state = [
                State::Free,
                State::Undecided,
                State::Succeeded,
                State::Failed,
            ][random(4) as usize];
            let words: Vec<_> = (0..random(4))
                .map(|i| (i as usize, random(1000), random(1000)))
                .collect();
            let policies = if random(3) == 0 {
                random(256) & ((1 << (2 * words.len())) - 1)
            } else {
                0
            };
            field.forge(number, state, &words, policies);
        }
        let mut anything = || {
            let (number, generation) = (random(4) as usize, random(8));
            let status = Status(field.swaps.status(number % 3).load(pm, Ordering::Relaxed));
            let generation = status.generation() + generation - random(2) * generation;
            match random(6) {
                0 => random(u64::MAX >> 33) << 33 | random(1 << 30),
                1 => pointer(number, generation),
                2 => conditional(number, generation, random(8) as usize, 1),
                3 => field.place(random(WORDS) as usize),
                4 => random(64) << 58 | random(1000),
                _ => Status::new(State::Undecided, generation, random(8) as usize, random(4)).0,
            }
        };
        let damage: Vec<u64> = (0..8).map(|_| anything()).collect();
        for value in &damage[..(round % 3) as usize] {
            // The header now and then.
            let first = if random(20) == 0 { 0 } else { 8 };
            let word = first + random(field.swaps.bytes() / 8 - first);
            field
                .swaps
                .word(at + word * 8)
                .store(pm, *value, Ordering::Relaxed);
        }
        for (i, value) in damage[3..].iter().enumerate() {
            field.set(i, *value);
        }
        let Ok((swaps, _)) = field.reopen() else {
            refused += 1;
            continue;
        };
        opened += 1;
        let words: Vec<_> = (0..3).map(|i| (i, swaps.read(field.word(i)))).collect();
        assert!(words.iter().all(|(_, value)| value & FLAGS == 0));
        let mut swap = swaps.allocate_descriptor().unwrap();
        for (i, value) in &words {
            swap.add_word(field.word(*i), *value, 7).unwrap();
        }
        assert_eq!(swap.execute(), Ok(true), "round {round}: {damage:x?}");
        assert!((0..3).all(|i| field.get(i) == 7));
    }
    assert!(
        refused > 500 && opened > 500,
        "{refused} refused, {opened} opened"
    );
}

/// In a clean close, when all is quiet, the allocator's marks are those of reachable blocks, so
/// that a later opening that loads them finds no other block in use.
#[test]
fn marks_saved_after_quiesce_have_no_block_that_is_to_be_recycled() {
    let root = root::<Medium>();
    let heap = root.heap();
    let mut swaps = DescriptorPool::create(&heap, 1, 4, 2, Box::new(heap.clone())).unwrap();
    let block = || heap.alloc(64).unwrap().get();
    let (node, old, new) = (block(), block(), block());
    let word = swaps.word(node);
    word.store(swaps.pm(), old, Ordering::Relaxed);
    let mut swap = swaps.allocate_descriptor().unwrap();
    swap.add_word_with(word, old, new, Policy::FreeOne).unwrap();
    assert_eq!(swap.execute(), Ok(true));
    assert_eq!((heap.live_blocks(), swaps.held_blocks()), (4, vec![old]));
    swaps.quiesce();
    assert_eq!((heap.live_blocks(), swaps.held_blocks()), (3, vec![]));
    let mut marks = Vec::new();
    heap.save_marks(&mut marks);
    let at = swaps.offset();
    drop(swaps);
    heap.begin_recovery();
    let (_, recovered) = DescriptorPool::open(&heap, at, Box::new(heap.clone())).unwrap();
    assert_eq!(
        recovered,
        Recovered::default(),
        "nothing that marks could contradict"
    );
    assert_eq!(heap.load_marks(&marks), Some(marks.len()));
    heap.finish_recovery();
    assert_eq!(heap.live_blocks(), 3);
    assert!(heap.is_live(new) && !heap.is_live(old));
}
