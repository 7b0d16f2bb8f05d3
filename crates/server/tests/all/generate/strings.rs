//! Commands on strings.

use super::{Words, float, key, number, one, rarely, value, words};
use rand::{Rng, RngExt};

/// Returns a time to live that outlasts the test, seldom an invalid one.
fn expiry(rng: &mut impl Rng, words: &mut Words) {
    let (word, number) = match rng.random_range(0..4) {
        0 => ("ex", "100000"),
        1 => ("px", "100000000"),
        2 => ("exat", "4102444800"),
        _ => ("pxat", "4102444800000"),
    };
    words.push(word.into());
    let strange = [
        "0",
        "-1",
        "x",
        "1",
        "9223372036854775807",
        "9223372036854775",
        "9223372036854776",
    ];
    words.push(
        if word.ends_with("at") && rarely(rng, 6) || rarely(rng, 60) {
            // As a time since 1970, 1 is past.
            let strange = if word.ends_with("at") {
                &strange[..]
            } else {
                &strange[..3]
            };
            one(rng, strange).into()
        } else {
            number.into()
        },
    );
}

fn set(rng: &mut impl Rng) -> Words {
    let mut command = vec![b"set".to_vec(), key(rng, "s"), value(rng)];
    while rarely(rng, 3) {
        match rng.random_range(0..6) {
            0 => command.push(b"nx".to_vec()),
            1 => command.push(b"xx".to_vec()),
            2 => command.push(b"get".to_vec()),
            3 => command.push(b"keepttl".to_vec()),
            _ => expiry(rng, &mut command),
        }
    }
    command
}

fn getex(rng: &mut impl Rng) -> Words {
    let mut command = vec![b"getex".to_vec(), key(rng, "s")];
    while rarely(rng, 2) {
        match rng.random_range(0..6) {
            0 => command.push(b"persist".to_vec()),
            1 => command.push(one(rng, &["nx", "keepttl", "get", "bla"]).into()),
            _ => expiry(rng, &mut command),
        }
    }
    command
}

fn lcs(rng: &mut impl Rng) -> Words {
    let mut command = vec![b"lcs".to_vec(), key(rng, "s"), key(rng, "s")];
    while rarely(rng, 2) {
        match rng.random_range(0..5) {
            0 => command.push(b"len".to_vec()),
            1 => command.push(b"withmatchlen".to_vec()),
            2 => command.extend([b"minmatchlen".to_vec(), number(rng)]),
            _ => command.push(b"idx".to_vec()),
        }
    }
    command
}

fn bitfield(rng: &mut impl Rng) -> Words {
    let name = one(rng, &["bitfield", "bitfield", "bitfield", "bitfield_ro"]);
    let mut command = vec![name.into(), key(rng, "s")];
    for _ in 0..rng.random_range(0..4) {
        let what = match name {
            "bitfield_ro" if !rarely(rng, 10) => "get",
            _ => one(rng, &["get", "set", "incrby", "incrby", "overflow", "foo"]),
        };
        if what == "foo" && !rarely(rng, 10) {
            continue;
        }
        command.push(what.into());
        if what == "overflow" {
            command.push(one(rng, &["wrap", "sat", "fail", "sat", "FAIL", "none"]).into());
            continue;
        }
        let bits = match rng.random_range(0..12) {
            0 => one(rng, &["u64", "i64", "u63", "i65", "i0", "u", "x8", "I8"]).to_owned(),
            1..4 => format!("{}{}", one(rng, &["i", "u"]), rng.random_range(1..64)),
            _ => one(rng, &["u8", "i8", "u4", "i5", "u1", "i16"]).to_owned(),
        };
        let offset = match rng.random_range(0..20) {
            0 => one(
                rng,
                &["-1", "x", "#", "#-1", "4294967296", "#9223372036854775807"],
            )
            .to_owned(),
            1..8 => format!("#{}", rng.random_range(0..9)),
            _ => rng.random_range(0..70).to_string(),
        };
        command.extend([bits.into_bytes(), offset.into_bytes()]);
        if what != "get" {
            command.push(number(rng));
        }
    }
    command
}

fn bits(rng: &mut impl Rng) -> Words {
    let offset = |rng: &mut dyn Rng| -> Vec<u8> {
        let text = match rng.random_range(0..20) {
            0 => "-1".to_owned(),
            1 => "4294967296".to_owned(),
            2 => "x".to_owned(),
            _ => rng.random_range(0..200).to_string(),
        };
        text.into_bytes()
    };
    let mut command = Words::new();
    match rng.random_range(0..5) {
        0 => command.extend([b"getbit".to_vec(), key(rng, "s"), offset(rng)]),
        1 => {
            let bit = if rarely(rng, 15) {
                "2"
            } else {
                one(rng, &["0", "1"])
            };
            command.extend([b"setbit".to_vec(), key(rng, "s"), offset(rng), bit.into()]);
        }
        2 => {
            command.extend([b"bitcount".to_vec(), key(rng, "s")]);
            if !rarely(rng, 3) {
                command.extend([number(rng), number(rng)]);
                if rarely(rng, 2) {
                    command.push(one(rng, &["bit", "byte", "bit", "bits"]).into());
                }
            }
        }
        3 => {
            command.extend([b"bitpos".to_vec(), key(rng, "s")]);
            command.push(one(rng, &["0", "1", "0", "1", "2", "x"]).into());
            if !rarely(rng, 3) {
                command.push(number(rng));
                if !rarely(rng, 3) {
                    command.push(number(rng));
                    if rarely(rng, 2) {
                        command.push(one(rng, &["bit", "byte", "bit", "bits"]).into());
                    }
                }
            }
        }
        _ => {
            let of = one(rng, &["and", "or", "xor", "not", "nand"]);
            command.extend([b"bitop".to_vec(), of.into(), key(rng, "s"), key(rng, "s")]);
            if of != "not" || rarely(rng, 10) {
                command.extend((0..rng.random_range(0..3)).map(|_| key(rng, "s")));
            }
        }
    }
    command
}

/// Returns a command.
pub fn command(rng: &mut impl Rng) -> Words {
    match rng.random_range(0..40) {
        0..6 => set(rng),
        6..8 => getex(rng),
        8..10 => lcs(rng),
        10..14 => {
            let name = one(rng, &["get", "strlen", "getdel", "incr", "decr"]);
            vec![name.into(), key(rng, "s")]
        }
        14..18 => {
            let name = one(rng, &["append", "getset", "setnx"]);
            vec![name.into(), key(rng, "s"), value(rng)]
        }
        18..22 => {
            let name = one(rng, &["incrby", "decrby"]);
            vec![name.into(), key(rng, "s"), number(rng)]
        }
        22..25 => vec![b"incrbyfloat".to_vec(), key(rng, "s"), float(rng)],
        25..28 => {
            let name = one(rng, &["getrange", "substr"]);
            vec![name.into(), key(rng, "s"), number(rng), number(rng)]
        }
        28 => vec![b"setrange".to_vec(), key(rng, "s"), number(rng), value(rng)]
            .into_iter()
            .enumerate()
            // A string of half a gigabyte takes its time.
            .map(|(at, word)| {
                if at == 2 && word.len() > 6 {
                    b"-1".to_vec()
                } else {
                    word
                }
            })
            .collect(),
        29..31 => {
            let mut command = words(&["mget"]);
            command.extend((0..rng.random_range(1..5)).map(|_| key(rng, "s")));
            command
        }
        31..34 => {
            let mut command = words(&[if rarely(rng, 2) { "mset" } else { "msetnx" }]);
            for _ in 0..rng.random_range(1..4) {
                command.extend([key(rng, "s"), value(rng)]);
            }
            command
        }
        34 => {
            let (name, number) = if rarely(rng, 2) {
                ("setex", "100000")
            } else {
                ("psetex", "100000000")
            };
            let number = if rarely(rng, 5) {
                one(rng, &["0", "-1", "x", "9223372036854775807"])
            } else {
                number
            };
            vec![name.into(), key(rng, "s"), number.into(), value(rng)]
        }
        35..38 => bits(rng),
        _ => bitfield(rng),
    }
}
