//! `LCS`: the longest common subsequence of two strings.

use crate::command::{Access, Command, TWO};
use crate::commands::strings::MAX_STRING;
use crate::data::tx::Tx;
use crate::error::{CommandError, Outcome};
use crate::parse::{Arg, integer, is};
use crate::reply::Out;

/// The command.
pub const COMMANDS: &[Command] =
    &[Command::new("lcs", -3, Access::Read, TWO, &["string"], lcs).long()];

/// The table of the dynamic program, reduced to one bit for each pair of prefixes: the direction
/// that leads back.
struct Table {
    /// Set if the prefix without the last byte of the first string has the longer subsequence.
    up: Vec<u64>,
    width: usize,
    /// The length of the whole strings' subsequence.
    length: u32,
}

impl Table {
    fn of(a: &[u8], b: &[u8]) -> Self {
        let width = b.len();
        let mut up = vec![0; (width * a.len()).div_ceil(64)];
        let length = lengths(a, b, |i, j| {
            let at = i * width + j;
            up[at / 64] |= 1 << (at % 64);
        });
        Self { up, width, length }
    }

    /// Returns the bit of the prefixes that end with byte `i` of the first string and byte `j` of
    /// the second, counted from 0.
    fn up(&self, i: usize, j: usize) -> bool {
        let at = i * self.width + j;
        self.up[at / 64] >> (at % 64) & 1 == 1
    }
}

/// Returns the length for the whole strings, computed in two rows. `up` is called where [`Table`]
/// has a bit set.
fn lengths(a: &[u8], b: &[u8], mut up: impl FnMut(usize, usize)) -> u32 {
    let (mut above, mut row) = (vec![0u32; b.len() + 1], vec![0u32; b.len() + 1]);
    for (i, x) in a.iter().enumerate() {
        for (j, y) in b.iter().enumerate() {
            row[j + 1] = if x == y {
                above[j] + 1
            } else if above[j + 1] > row[j] {
                up(i, j);
                above[j + 1]
            } else {
                row[j]
            };
        }
        std::mem::swap(&mut above, &mut row);
    }
    above.last().copied().unwrap_or(0)
}

/// A run of bytes that both strings contain: its start in each, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    a: usize,
    b: usize,
    len: usize,
}

/// Returns the subsequence, and its runs from the last to the first.
fn runs(table: &Table, a: &[u8], b: &[u8]) -> (Vec<u8>, Vec<Run>) {
    let (mut i, mut j) = (a.len(), b.len());
    let mut common = Vec::with_capacity(table.length as usize);
    let mut runs: Vec<Run> = Vec::new();
    while i > 0 && j > 0 {
        if a[i - 1] == b[j - 1] {
            i -= 1;
            j -= 1;
            common.push(a[i]);
            match runs.last_mut() {
                Some(run) if run.a == i + 1 && run.b == j + 1 => {
                    *run = Run {
                        a: i,
                        b: j,
                        len: run.len + 1,
                    }
                }
                _ => runs.push(Run { a: i, b: j, len: 1 }),
            }
        } else if table.up(i - 1, j - 1) {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    common.reverse();
    (common, runs)
}

fn lcs(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let mut string = |key: &[u8]| match tx.string_with(key, |bytes, _| bytes.to_vec()) {
        Err(CommandError::Reply(_)) => Err(CommandError::reply(
            "ERR The specified keys must contain string values",
        )),
        found => Ok(found?.unwrap_or_default()),
    };
    let (a, b) = (string(args[1])?, string(args[2])?);
    let (mut only_len, mut idx, mut with_len, mut least) = (false, false, false, 0);
    let mut rest = args[3..].iter();
    while let Some(word) = rest.next() {
        if is(word, "idx") {
            idx = true;
        } else if is(word, "len") {
            only_len = true;
        } else if is(word, "withmatchlen") {
            with_len = true;
        } else if is(word, "minmatchlen")
            && let Some(number) = rest.next()
        {
            least = usize::try_from(integer(number)?.max(0)).unwrap_or(usize::MAX);
        } else {
            return Err(CommandError::syntax());
        }
    }
    if idx && only_len {
        return Err(CommandError::reply(
            "ERR If you want both the length and indexes, please just use IDX.",
        ));
    }
    // Redis keeps a 4-byte number for each pair, and limits the table accordingly.
    let cells = (a.len() + 1).checked_mul(b.len() + 1);
    if cells.is_none_or(|cells| cells > MAX_STRING / size_of::<u32>()) {
        return Err(CommandError::reply(
            "ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len",
        ));
    }
    if only_len {
        out.integer(lengths(&a, &b, |_, _| ()).into());
        return Ok(());
    }
    let (common, runs) = runs(&Table::of(&a, &b), &a, &b);
    if !idx {
        out.bulk(&common);
        return Ok(());
    }
    out.map(2);
    out.bulk(b"matches");
    let long: Vec<&Run> = runs.iter().filter(|run| run.len >= least).collect();
    out.array(long.len());
    for run in long {
        out.array(2 + usize::from(with_len));
        for at in [run.a, run.b] {
            out.array(2);
            out.integer(at as i64);
            out.integer((at + run.len - 1) as i64);
        }
        if with_len {
            out.integer(run.len as i64);
        }
    }
    out.bulk(b"len");
    out.integer(common.len() as i64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_common_subsequence_and_its_runs() {
        let (a, b) = (b"ohmytext", b"mynewtext");
        let table = Table::of(a, b);
        let (common, runs) = runs(&table, a, b);
        assert_eq!(common, b"mytext");
        assert_eq!(
            runs,
            [Run { a: 4, b: 5, len: 4 }, Run { a: 2, b: 0, len: 2 }]
        );
        assert_eq!(table.length, 6);
        assert_eq!(lengths(b"", b, |_, _| ()), 0);
    }
}
