//! Reads the output of `strace -f -xx -o FILE`: system calls with their arguments and results.
//!
//! A call of one thread may be interrupted by lines of others: `name(... <unfinished ...>` and
//! later `<... name resumed>...) = result`. A call here has the line where it began and the line
//! where it ended, so that one can tell which calls overlap.

use super::PowerCutError;
use std::collections::HashMap;

/// A system call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The thread that made it.
    pub thread: u32,
    /// The line where it began, counted from 0.
    pub begin: usize,
    /// The line where it ended; `None` if the trace ends first.
    pub end: Option<usize>,
    /// Its name.
    pub name: String,
    /// Its arguments.
    pub args: Vec<Arg>,
    /// What it returned; negative after an error, `None` if it did not return.
    pub result: Option<i64>,
}

/// An argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arg {
    /// A string or buffer.
    Bytes(Vec<u8>),
    /// `[...]`
    List(Vec<Arg>),
    /// `{name=..., ...}`
    Fields(Vec<(String, Arg)>),
    /// A number, flags, or anything else.
    Word(String),
}

impl Arg {
    /// Returns the bytes of a string or buffer.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Returns a number: decimal, hexadecimal or octal.
    #[must_use]
    pub fn number(&self) -> Option<i64> {
        match self {
            Self::Word(word) => number(word),
            _ => None,
        }
    }

    /// Returns true if the flag is among those of the argument.
    #[must_use]
    pub fn has(&self, flag: &str) -> bool {
        matches!(self, Self::Word(word) if word.split('|').any(|one| one == flag))
    }
}

fn number(word: &str) -> Option<i64> {
    if let Some(hex) = word.strip_prefix("0x") {
        // An address may have its highest bit set.
        return u64::from_str_radix(hex, 16).ok().map(u64::cast_signed);
    }
    if word.len() > 1 && word.starts_with('0') {
        return i64::from_str_radix(word, 8).ok();
    }
    word.parse().ok()
}

/// Parses a trace. Returns its calls in the order in which they began.
///
/// # Errors
/// [`PowerCutError::Trace`], with the number of the line, counted from 1.
pub fn parse(trace: &[u8]) -> Result<Vec<Call>, PowerCutError> {
    let mut calls: Vec<Call> = Vec::new();
    // The calls that have begun, each with the text of its line.
    let mut open: HashMap<u32, (usize, &[u8])> = HashMap::new();
    for (line, text) in trace.split(|byte| *byte == b'\n').enumerate() {
        let wrong = |what: &str| PowerCutError::Trace {
            line: line + 1,
            what: what.to_owned(),
        };
        let text = text.trim_ascii();
        if text.is_empty() {
            continue;
        }
        let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let thread = std::str::from_utf8(&text[..digits])
            .ok()
            .and_then(|digits| digits.parse().ok())
            .ok_or_else(|| wrong("no number of a thread"))?;
        let text = text[digits..].trim_ascii_start();
        if text.starts_with(b"+++") || text.starts_with(b"---") {
            continue;
        }
        if let Some(rest) = text.strip_prefix(b"<... ") {
            let (at, head) = open
                .remove(&thread)
                .ok_or_else(|| wrong("a call goes on that has not begun"))?;
            let rest = after(rest, b" resumed>").ok_or_else(|| wrong("no \"resumed>\""))?;
            let whole = [head, rest].concat();
            let ended = Parser::call(&whole).map_err(|what| wrong(&what))?;
            let call = &mut calls[at];
            (call.args, call.result) = (ended.args, ended.result);
            call.end = Some(line);
            continue;
        }
        let unfinished = find(text, b" <unfinished ...>");
        let parsed = match unfinished {
            Some(at) => {
                open.insert(thread, (calls.len(), &text[..at]));
                Parser::begun(&text[..at])
            }
            None => Parser::call(text),
        };
        let parsed = parsed.map_err(|what| wrong(&what))?;
        calls.push(Call {
            thread,
            begin: line,
            end: unfinished.is_none().then_some(line),
            name: parsed.name,
            args: parsed.args,
            result: parsed.result,
        });
    }
    Ok(calls)
}

/// Returns the place of `part`, which buffers in hexadecimal do not contain.
fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    // From the end, where it is: buffers are long.
    text.windows(part.len()).rposition(|window| window == part)
}

fn after<'t>(text: &'t [u8], part: &[u8]) -> Option<&'t [u8]> {
    let at = text.windows(part.len()).position(|window| window == part)?;
    Some(&text[at + part.len()..])
}

struct Parsed {
    name: String,
    args: Vec<Arg>,
    result: Option<i64>,
}

/// A line that is being read.
struct Parser<'t> {
    text: &'t [u8],
    at: usize,
}

impl<'t> Parser<'t> {
    /// Parses `name(args) = result`.
    fn call(text: &'t [u8]) -> Result<Parsed, String> {
        let mut parser = Self { text, at: 0 };
        let name = parser.name()?;
        let args = parser.list(b')')?;
        parser.spaces();
        if !parser.takes(b'=') {
            return Err("no result".into());
        }
        parser.spaces();
        let rest = &parser.text[parser.at..];
        let word = rest.split(|byte| *byte == b' ').next().unwrap_or(&[]);
        let word = std::str::from_utf8(word).map_err(|_| "an unreadable result")?;
        let result = match word {
            "?" => None,
            word => Some(number(word).ok_or_else(|| format!("the result {word:?}"))?),
        };
        Ok(Parsed { name, args, result })
    }

    /// Parses `name(args`, as far as the arguments are there.
    fn begun(text: &'t [u8]) -> Result<Parsed, String> {
        let closed = [text, b")"].concat();
        let mut parser = Parser {
            text: &closed,
            at: 0,
        };
        let name = parser.name()?;
        // Some calls show the last arguments only when they end.
        let args = parser.list(b')')?;
        Ok(Parsed {
            name,
            args,
            result: None,
        })
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn takes(&mut self, byte: u8) -> bool {
        let is = self.peek() == Some(byte);
        self.at += usize::from(is);
        is
    }

    fn spaces(&mut self) {
        while self.takes(b' ') {}
    }

    fn name(&mut self) -> Result<String, String> {
        let rest = &self.text[self.at..];
        let end = rest
            .iter()
            .position(|byte| *byte == b'(')
            .ok_or("no system call")?;
        self.at += end + 1;
        let name = &rest[..end];
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        if name.is_empty() || !name.iter().all(plain) {
            return Err("no system call".into());
        }
        Ok(String::from_utf8_lossy(name).into_owned())
    }

    /// Parses arguments up to `end` and takes it.
    fn list(&mut self, end: u8) -> Result<Vec<Arg>, String> {
        let mut args = Vec::new();
        loop {
            self.spaces();
            if self.takes(end) {
                return Ok(args);
            }
            args.push(self.arg()?);
            self.spaces();
            if !self.takes(b',') && self.peek() != Some(end) {
                return Err(format!(
                    "an argument that does not end, at byte {}",
                    self.at
                ));
            }
        }
    }

    fn arg(&mut self) -> Result<Arg, String> {
        if self.takes(b'"') {
            return self.string().map(Arg::Bytes);
        }
        if self.takes(b'[') {
            return self.list(b']').map(Arg::List);
        }
        if self.takes(b'{') {
            return self.fields().map(Arg::Fields);
        }
        let from = self.at;
        let mut depth = 0;
        while let Some(byte) = self.peek() {
            match byte {
                b'(' => depth += 1,
                b')' if depth > 0 => depth -= 1,
                b',' | b')' | b']' | b'}' if depth == 0 => break,
                _ => {}
            }
            self.at += 1;
        }
        let word = String::from_utf8_lossy(&self.text[from..self.at]);
        Ok(Arg::Word(word.trim_end().to_owned()))
    }

    fn fields(&mut self) -> Result<Vec<(String, Arg)>, String> {
        let mut fields = Vec::new();
        loop {
            self.spaces();
            if self.takes(b'}') {
                return Ok(fields);
            }
            let rest = &self.text[self.at..];
            let name = rest
                .iter()
                .position(|byte| *byte == b'=')
                .ok_or("a field without a value")?;
            self.at += name + 1;
            let name = String::from_utf8_lossy(&rest[..name]).into_owned();
            fields.push((name, self.arg()?));
            self.spaces();
            if !self.takes(b',') && self.peek() != Some(b'}') {
                return Err("a field that does not end".into());
            }
        }
    }

    /// Parses a string behind its first quotation mark.
    fn string(&mut self) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        loop {
            let byte = self.peek().ok_or("a string that does not end")?;
            self.at += 1;
            match byte {
                b'"' => break,
                b'\\' => bytes.push(self.escaped()?),
                byte => bytes.push(byte),
            }
        }
        if self.text[self.at..].starts_with(b"...") {
            return Err("strace has cut a buffer short (-s)".into());
        }
        Ok(bytes)
    }

    fn escaped(&mut self) -> Result<u8, String> {
        let byte = self.peek().ok_or("an escape that does not end")?;
        self.at += 1;
        Ok(match byte {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'v' => 0x0B,
            b'f' => 0x0C,
            b'x' => {
                let (high, low) = (self.digit(16)?, self.digit(16)?);
                (high << 4 | low) as u8
            }
            b'0'..=b'7' => {
                let mut value = u32::from(byte - b'0');
                for _ in 0..2 {
                    if !matches!(self.peek(), Some(b'0'..=b'7')) {
                        break;
                    }
                    value = value * 8 + self.digit(8)?;
                }
                u8::try_from(value).map_err(|_| "an octal escape above 377")?
            }
            b'"' | b'\\' => byte,
            other => return Err(format!("the escape \\{}", char::from(other))),
        })
    }

    fn digit(&mut self, radix: u32) -> Result<u32, String> {
        let byte = self.peek().ok_or("an escape that does not end")?;
        self.at += 1;
        char::from(byte)
            .to_digit(radix)
            .ok_or_else(|| "an escape without a digit".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str) -> Arg {
        Arg::Word(text.into())
    }

    fn parsed(text: &str) -> Vec<Call> {
        parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_call_has_its_arguments_and_its_result() {
        let calls = parsed(
            "812   openat(AT_FDCWD, \"/t/a\\\"\\x62\\1014\\n\", O_RDWR|O_CREAT|O_CLOEXEC, 0644) = 5\n",
        );
        let [call] = &calls[..] else {
            panic!("{calls:?}")
        };
        assert_eq!((call.thread, call.begin, call.end), (812, 0, Some(0)));
        assert_eq!((&*call.name, call.result), ("openat", Some(5)));
        assert_eq!(call.args[1].bytes(), Some(&b"/t/a\"bA4\n"[..]));
        assert!(call.args[2].has("O_CREAT") && !call.args[2].has("O_CREA"));
        assert_eq!(call.args[3].number(), Some(0o644));
    }

    #[test]
    fn lines_of_threads_are_put_together() {
        let calls = parsed(
            "10 fdatasync(5 <unfinished ...>\n\
             11 pwrite64(6, \"\\x00\\xff\", 2, 8192 <unfinished ...>\n\
             10 <... fdatasync resumed>)          = 0\n\
             10 write(1, \"ack 1\\n\", 6)          = 6\n\
             11 <... pwrite64 resumed>)           = 2\n\
             12 mmap(NULL, 4096 <unfinished ...>\n\
             12 <... mmap resumed>, PROT_READ, MAP_PRIVATE, 3, 0) = 0x7f0000000000\n\
             13 fsync(7 <unfinished ...>\n",
        );
        let spans: Vec<_> = calls.iter().map(|c| (c.begin, c.end, c.result)).collect();
        let address = Some(0x7f00_0000_0000);
        let expected = [
            (0, Some(2), Some(0)),
            (1, Some(4), Some(2)),
            (3, Some(3), Some(6)),
            (5, Some(6), address),
            (7, None, None),
        ];
        assert_eq!(spans, expected);
        assert_eq!(calls[1].args[1].bytes(), Some(&[0, 0xFF][..]));
        assert_eq!(calls[3].args.len(), 6);
        assert_eq!(calls[4].args, [word("7")]);
    }

    #[test]
    fn vectors_errors_and_ends_are_read() {
        let calls = parsed(
            "7 pwritev2(5, [{iov_base=\"ab\", iov_len=2}, {iov_base=\"c\", iov_len=1}], 2, 512, RWF_DSYNC) = 1\n\
             7 pwritev(9, [{iov_base=\"\", iov_len=0}], 1, 0) = -1 EINVAL (Invalid argument)\n\
             7 --- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED} ---\n\
             7 close(5) = ?\n\
             7 +++ exited with 0 +++\n",
        );
        let Arg::List(parts) = &calls[0].args[1] else {
            panic!("{calls:?}")
        };
        let Arg::Fields(fields) = &parts[0] else {
            panic!("{calls:?}")
        };
        assert_eq!(fields[0], ("iov_base".into(), Arg::Bytes(b"ab".to_vec())));
        assert_eq!(fields[1], ("iov_len".into(), word("2")));
        let results: Vec<_> = calls.iter().map(|call| call.result).collect();
        assert_eq!(results, [Some(1), Some(-1), None]);
    }

    #[test]
    fn what_cannot_be_read_is_named_with_its_line() {
        for (text, what) in [
            (
                "1 close(3) = 0\nclose(3) = 0\n",
                "line 2: no number of a thread",
            ),
            ("1 <... close resumed>) = 0\n", "has not begun"),
            ("1 write(3, \"ab\"..., 2) = 2\n", "cut a buffer short"),
            ("1 write(3, \"ab, 2) = 2\n", "does not end"),
            ("1 write(3, \"\\q\", 2) = 2\n", "the escape"),
            ("1 close(3)\n", "no result"),
            ("1 close(3) = x\n", "the result"),
            ("1 ?\n", "no system call"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
