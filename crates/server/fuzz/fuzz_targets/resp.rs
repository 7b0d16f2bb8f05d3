//! The parser of requests: the same bytes yield the same commands and the same error, in whatever
//! pieces they come. The length by which replies are split lies within them.

#![no_main]

use arbitrary::Arbitrary;
use bristlecone_server::resp::{Limits, Parser, ProtocolError, reply_length};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// How many bytes come at once, in turn.
    pieces: Vec<u8>,
    unauthenticated: bool,
    small: bool,
    bytes: &'a [u8],
}

type Commands = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>);

/// Returns all commands in `bytes`, which come in pieces, and the error that ends them.
fn commands(bytes: &[u8], limits: Limits, pieces: &[u8]) -> Commands {
    let mut parser = Parser::default();
    let mut found = Vec::new();
    let (mut start, mut end) = (0, 0);
    let mut pieces = pieces.iter().cycle();
    while end < bytes.len() {
        let piece = pieces
            .next()
            .map_or(bytes.len(), |piece| usize::from(*piece) + 1);
        end = (end + piece).min(bytes.len());
        loop {
            let come = &bytes[start..end];
            match parser.parse(come, limits) {
                Ok(Some(length)) => {
                    assert!((1..=come.len()).contains(&length));
                    let args = parser.args(come);
                    found.push(args.iter().map(|arg| arg.to_vec()).collect());
                    drop(args);
                    start += length;
                    parser.clear();
                }
                Ok(None) => {
                    let needed = parser.needed();
                    assert!(needed == 0 || needed > come.len());
                    break;
                }
                Err(error) => return (found, Some(error)),
            }
        }
    }
    (found, None)
}

fuzz_target!(|input: Input<'_>| {
    let limits = Limits {
        bulk: if input.small {
            64
        } else {
            Limits::default().bulk
        },
        arguments: if input.small {
            4
        } else {
            Limits::default().arguments
        },
        unauthenticated: input.unauthenticated,
    };
    let whole = commands(input.bytes, limits, &[]);
    assert_eq!(commands(input.bytes, limits, &input.pieces), whole);
    assert_eq!(commands(input.bytes, limits, &[0]), whole);
    for (args, most) in whole.0.iter().map(|args| (args, limits.arguments)) {
        // Inline commands have a limit of their own: that of their line.
        let inline = args.iter().map(Vec::len).sum::<usize>() < 64 << 10;
        assert!(args.len() <= most || inline);
    }
    if let Some(length) = reply_length(input.bytes) {
        assert!(length <= input.bytes.len());
        for shorter in 0..length {
            assert_eq!(reply_length(&input.bytes[..shorter]), None);
        }
    }
});
