//! Lines and cyclomatic complexity of the code that splits a node, in BzTree and in the Bw-Tree
//! (BzTree, section 7.2).
//!
//! They are counted in the source text of the functions that [`BZTREE`] and [`BWTREE`] name.

use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};

pub(super) const ENTRY: Entry = Entry {
    name: "bz-complexity",
    title: "lines and cyclomatic complexity of node split",
    paper: papers::BZ,
    place: "section 7.2",
    on: &[On::Counted],
    run,
};

/// A source file, and its functions that count.
struct Source {
    file: &'static str,
    text: &'static str,
    functions: &'static [&'static str],
}

/// The functions that split a full leaf or inner node, until both halves are in the tree.
const BZTREE: &[Source] = &[Source {
    file: "bztree/reshape.rs",
    text: include_str!("../../../designs/src/latchfree/bztree/reshape.rs"),
    functions: &[
        "reshape",
        "reshape_frozen",
        "wants",
        "splits_inner",
        "finish",
        "parent_full",
        "add_split",
        "separator",
        "split_point",
    ],
}];
const BWTREE: &[Source] = &[
    Source {
        file: "bwtree/modification.rs",
        text: include_str!("../../../designs/src/latchfree/bwtree/modification.rs"),
        functions: &[
            "look_after",
            "do_chores",
            "consolidate",
            "help_split",
            "finish_split",
            "post",
            "grow",
            "exchange_root",
        ],
    },
    Source {
        file: "bwtree/consolidate.rs",
        text: include_str!("../../../designs/src/latchfree/bwtree/consolidate.rs"),
        functions: &["split_of", "discard_split"],
    },
];

/// A token of a source text.
#[derive(Clone, Copy, Debug)]
struct Token<'a> {
    text: &'a str,
    line: usize,
}

/// Stands for any string or character literal.
const LITERAL: &str = "\"\"";

impl Token<'_> {
    /// Returns true if a value ends here, so that a following `&&` or `||` is an operator and not a
    /// reference or a closure.
    fn ends_value(self) -> bool {
        let word = self.text.starts_with(is_word);
        let keyword = ["return", "move", "in", "else", "match", "if", "while"].contains(&self.text);
        word && !keyword || [")", "]", "}", "?", LITERAL].contains(&self.text)
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the bytes of the comment or literal that `rest` begins with, and whether it is a
/// literal.
fn skipped(rest: &str) -> Option<(usize, bool)> {
    let until = |from: usize, end: &str| {
        let found = rest[from..].find(end);
        found.map_or(rest.len(), |at| from + at + end.len())
    };
    if rest.starts_with("//") {
        return Some((rest.find('\n').unwrap_or(rest.len()), false));
    }
    if rest.starts_with("/*") {
        let (mut depth, mut at) = (0_usize, 0);
        while at < rest.len() {
            let (step, change) = match &rest.as_bytes()[at..] {
                [b'/', b'*', ..] => (2, 1),
                [b'*', b'/', ..] => (2, -1),
                _ => (1, 0),
            };
            at += step;
            depth = depth.saturating_add_signed(change);
            if depth == 0 {
                break;
            }
        }
        return Some((at, false));
    }
    let plain = rest.trim_start_matches('b');
    let prefix = rest.len() - plain.len();
    if let Some(raw) = plain.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        return raw[hashes..].starts_with('"').then(|| {
            let end = format!("\"{}", "#".repeat(hashes));
            (until(prefix + hashes + 2, &end), true)
        });
    }
    let quote = plain.chars().next().filter(|c| ['"', '\''].contains(c))?;
    let mut inner = plain.char_indices().skip(1).peekable();
    let (_, first) = *inner.peek()?;
    if quote == '\'' && first != '\\' && plain.chars().nth(2) != Some('\'') {
        return None; // A lifetime.
    }
    while let Some((at, c)) = inner.next() {
        if c == '\\' {
            inner.next();
        } else if c == quote {
            return Some((prefix + at + 1, true));
        }
    }
    Some((rest.len(), true))
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let (mut tokens, mut line, mut at) = (Vec::new(), 1, 0);
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let (length, token) = if let Some((length, literal)) = skipped(rest) {
            (length, literal.then_some(LITERAL))
        } else if is_word(first) {
            let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            (length, Some(&rest[..length]))
        } else if first.is_whitespace() {
            (first.len_utf8(), None)
        } else {
            let pair = ["&&", "||", "=>"].into_iter().find(|p| rest.starts_with(p));
            let length = pair.map_or(first.len_utf8(), str::len);
            (length, Some(&rest[..length]))
        };
        tokens.extend(token.map(|text| Token { text, line }));
        line += rest[..length].matches('\n').count();
        at += length;
    }
    tokens
}

/// The counts of one function, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    /// Lines with code.
    lines: u64,
    /// Branches.
    decisions: u64,
    /// Branches that are a `?`.
    passed_on: u64,
}

/// Counts the function of that name. It is an error if there is none, or more than one.
fn count(tokens: &[Token<'_>], name: &str) -> Result<Counted, String> {
    let named = |pair: &[Token<'_>]| pair[0].text == "fn" && pair[1].text == name;
    let mut places = tokens.windows(2).enumerate();
    let first = places.find(|(_, pair)| named(pair));
    let Some((at, _)) = first else {
        return Err(format!("no function is called {name}"));
    };
    if places.any(|(_, pair)| named(pair)) {
        return Err(format!("more than one function is called {name}"));
    }
    let (mut counted, mut depth, mut last) = (Counted::default(), 0_u64, 0);
    let (mut more, mut less) = (0, 0);
    let function = &tokens[at..];
    for (i, token) in function.iter().enumerate() {
        counted.lines += u64::from(token.line != last);
        last = token.line;
        let before = function[i.saturating_sub(1)];
        let after = function.get(i + 1).map_or("", |token| token.text);
        match token.text {
            "{" => depth += 1,
            "}" if depth <= 1 => {
                counted.decisions = u64::saturating_sub(more, less);
                return Ok(counted);
            }
            "}" => depth -= 1,
            // Bounds such as `?Sized`.
            _ if depth == 0 => {}
            "if" | "while" | "=>" => more += 1,
            "?" => {
                more += 1;
                counted.passed_on += 1;
            }
            // This is not the `for` of `for<'a>`.
            "for" if after != "<" => more += 1,
            "&&" | "||" if before.ends_value() => more += 1,
            // This is the `else` of a `let`, since an `if` ends with a block.
            "else" if before.text != "}" => more += 1,
            // A `match` with n arms adds n - 1 branches.
            "match" => less += 1,
            _ => {}
        }
    }
    Err(format!("the function {name} has no end"))
}

fn missing(what: String) -> FigureError {
    FigureError::NotFound {
        name: ENTRY.name,
        what,
    }
}

/// Returns the counts of all functions of a tree, and a note on each.
fn count_all(sources: &[Source]) -> Result<(Counted, String), FigureError> {
    let (mut all, mut words) = (Counted::default(), Vec::new());
    for source in sources {
        let tokens = tokens(source.text);
        for name in source.functions {
            let one = count(&tokens, name).map_err(|e| missing(format!("{}: {e}", source.file)))?;
            all.lines += one.lines;
            all.decisions += one.decisions;
            all.passed_on += one.passed_on;
            words.push(format!("{name} {}, {}", one.lines, one.decisions + 1));
        }
    }
    Ok((all, words.join("; ")))
}

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let (bz, bz_words) = count_all(BZTREE)?;
    setting.step("counting", 1, 2);
    let (bw, bw_words) = count_all(BWTREE)?;
    setting.step("counting", 2, 2);
    let numbers = |of: Counted| vec![of.lines as f64, (of.decisions + 1) as f64];
    let (bz_numbers, bw_numbers) = (numbers(bz), numbers(bw));
    let claim = |what: &str, at: usize, paper: &str, expect: Expect| {
        Claim::new(
            format!("{what} of node split: BzTree over Bw-Tree"),
            paper,
            bz_numbers[at] / bw_numbers[at],
            expect,
        )
    };
    let [bz_own, bw_own] = [bz, bw].map(|of| of.decisions - of.passed_on + 1);
    let claims = vec![
        claim("lines", 0, "200 over 750", Expect::ratio(200.0 / 750.0)),
        claim(
            "cyclomatic complexity",
            1,
            "7 over 12",
            Expect::ratio(7.0 / 12.0).within(0.04),
        )
        .note(format!(
            "without each `?`, which passes an error on: {bz_own} and {bw_own}, {:.2} times",
            bz_own as f64 / bw_own as f64
        )),
    ];
    let words = ["lines", "cyclomatic complexity"];
    let panel = Panel::bars("Node split", "", "lines, or ways through", words)
        .with("BzTree", bz_numbers.clone())
        .with("Bw-Tree", bw_numbers.clone())
        .with("BzTree, the paper", vec![200.0, 7.0])
        .with("Bw-Tree, the paper", vec![750.0, 12.0]);
    Ok(Findings {
        claims,
        panels: vec![panel],
        notes: vec![
            "lines without blanks and comments, from the `fn` to its end; complexity as if all functions were one: 1 and a \
             decision for each `if`, `while`, `for`, `&&`, `||`, `?`, `else` of a `let`, and each arm of a `match` but one"
                .to_owned(),
            "what is common to splits and consolidations counts in both trees; searching, making a node's content and \
             merges do not, but where a function of a split has a step for them; the paper does not say which functions \
             it counted, and has one number for the complexity of an algorithm"
                .to_owned(),
            format!("BzTree, lines and complexity: {bz_words}"),
            format!("Bw-Tree, lines and complexity: {bw_words}"),
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r##"
/// fn documented() { if }
pub(super) fn branches<T: ?Sized>(a: &T) -> Option<u64>
where
    for<'a> T: Fn(&'a u8),
{
    // if || while

    let quoted = ("if {", '{', '\'', b'"', r#"while " {"#); /* for /* ? */ && */
    let closure = || true;
    let Some(b) = a.next()? else { return None };
    for i in 0..b {
        if i == 1 && !closure() || *quoted == &&2 { call(|| 3, move || 4) } else { 5 };
    }
    match b { 1 => None, 2 | 3 if b > 2 => Some(1), _ => Some(2) }
}
fn plain() {}
fn twice() {} fn twice() {}
fn endless() { {
"##;

    #[test]
    fn decisions_and_lines_are_those_of_the_code() {
        let tokens = tokens(TEXT);
        let branches = count(&tokens, "branches").unwrap();
        // `?`, `else` of `let`, `for`, `if`, `&&`, `||`, three arms but one, its guard.
        let expected = Counted {
            lines: 12,
            decisions: 9,
            passed_on: 1,
        };
        assert_eq!(branches, expected);
        let plain = count(&tokens, "plain").unwrap();
        assert_eq!((plain.lines, plain.decisions), (1, 0));
        for (name, what) in [
            ("documented", "no function"),
            ("twice", "more than one"),
            ("endless", "no end"),
        ] {
            let error = count(&tokens, name).unwrap_err();
            assert!(error.contains(what) && error.contains(name), "{error}");
        }
    }
}
