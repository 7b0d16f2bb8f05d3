//! Requests: arrays of bulk strings, and inline commands, parsed as their bytes come in.
//!
//! A parser remembers its position within a command, so that no byte is examined twice. Arguments
//! stay in the connection's buffer; the parser holds only their places. Announced lengths cost
//! nothing: memory is allocated for bytes that have come.

use smallvec::SmallVec;

/// The longest line in bytes: an inline command, or a header.
const MAX_LINE: usize = 64 << 10;
/// Limits of a client that has not authenticated.
const MAX_UNAUTHENTICATED_ARGUMENTS: i64 = 10;
const MAX_UNAUTHENTICATED_BULK: i64 = 16 << 10;
/// The number of places whose memory is kept for the next command.
const KEPT: usize = 1024;

/// The arguments of a command, its name first.
pub type Args<'a> = SmallVec<[&'a [u8]; 8]>;

/// Limits of a request.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest argument in bytes.
    pub bulk: usize,
    /// The most arguments of a command.
    pub arguments: usize,
    /// The client has yet to authenticate.
    pub unauthenticated: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bulk: 512 << 20,
            arguments: 1 << 20,
            unauthenticated: false,
        }
    }
}

/// The bytes are not a request. The connection has to end: nothing tells where the next request
/// begins.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// An inline command is too long.
    #[error("too big inline request")]
    LongInline,
    /// The header of an array is too long.
    #[error("too big mbulk count string")]
    LongCount,
    /// The header of a bulk string is too long.
    #[error("too big bulk count string")]
    LongLength,
    /// The number of arguments is malformed or too large.
    #[error("invalid multibulk length")]
    Count,
    /// There are too many arguments for a client that has yet to authenticate.
    #[error("unauthenticated multibulk length")]
    UnauthenticatedCount,
    /// An argument is not a bulk string.
    #[error("expected '$', got '{}'", printable(*.0))]
    NoBulk(u8),
    /// The length of an argument is malformed or too large.
    #[error("invalid bulk length")]
    Length,
    /// An argument is too long for a client that has yet to authenticate.
    #[error("unauthenticated bulk length")]
    UnauthenticatedLength,
    /// The quotes of an inline command are not closed.
    #[error("unbalanced quotes in request")]
    Quotes,
}

fn printable(byte: u8) -> char {
    if byte.is_ascii_control() || !byte.is_ascii() {
        ' '
    } else {
        byte as char
    }
}

/// The position of the parser.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    /// At the first byte of a command.
    #[default]
    Start,
    /// In an array, before the header of an argument, with the number of missing arguments.
    Header(usize),
    /// In an array, before an argument, with its length in bytes and the number of missing
    /// arguments, this one included.
    Bulk(usize, usize),
}

/// The parser of a connection. It is given all bytes of a command that have come, from its first
/// byte on, until the command is complete.
#[derive(Debug, Default)]
pub struct Parser {
    at: At,
    /// The number of parsed bytes.
    done: usize,
    /// The number of bytes after `done` without an end of line.
    searched: usize,
    /// Start and end of each argument: in the command, or in `inline`.
    places: Vec<(usize, usize)>,
    /// The arguments of an inline command, without their quotes.
    inline: Vec<u8>,
    is_inline: bool,
}

impl Parser {
    /// Continues to parse. `bytes` begins with the command. Returns the length of the command once
    /// it is complete. A command without arguments is to be ignored.
    ///
    /// # Errors
    /// [`ProtocolError`]
    pub fn parse(&mut self, bytes: &[u8], limits: Limits) -> Result<Option<usize>, ProtocolError> {
        loop {
            match self.at {
                At::Start => {
                    match bytes.first() {
                        None => return Ok(None),
                        Some(b'*') => {}
                        Some(_) => return self.parse_inline(bytes),
                    }
                    let Some(line) = self.line(bytes, ProtocolError::LongCount)? else {
                        return Ok(None);
                    };
                    let count = number(&line[1..])
                        .filter(|count| {
                            usize::try_from(*count).map_or(true, |count| count <= limits.arguments)
                        })
                        .ok_or(ProtocolError::Count)?;
                    if limits.unauthenticated && count > MAX_UNAUTHENTICATED_ARGUMENTS {
                        return Err(ProtocolError::UnauthenticatedCount);
                    }
                    self.advance(line.len() + 2);
                    match usize::try_from(count) {
                        Ok(count) if count > 0 => self.at = At::Header(count),
                        _ => return Ok(Some(self.done)),
                    }
                }
                At::Header(missing) => {
                    let short = short_length(bytes.get(self.done..));
                    if let Some((length, header)) = short.filter(|(len, _)| *len <= limits.bulk) {
                        self.advance(header);
                        self.at = At::Bulk(length, missing);
                        continue;
                    }
                    let Some(line) = self.line(bytes, ProtocolError::LongLength)? else {
                        return Ok(None);
                    };
                    match line.first() {
                        Some(b'$') => {}
                        other => return Err(ProtocolError::NoBulk(*other.unwrap_or(&b'\r'))),
                    }
                    let length = number(&line[1..]).ok_or(ProtocolError::Length)?;
                    let bytes_long = usize::try_from(length)
                        .ok()
                        .filter(|length| *length <= limits.bulk)
                        .ok_or(ProtocolError::Length)?;
                    if limits.unauthenticated && length > MAX_UNAUTHENTICATED_BULK {
                        return Err(ProtocolError::UnauthenticatedLength);
                    }
                    self.advance(line.len() + 2);
                    self.at = At::Bulk(bytes_long, missing);
                }
                At::Bulk(length, missing) => {
                    let end = self.done + length;
                    if bytes.len() < end + 2 {
                        return Ok(None);
                    }
                    self.places.push((self.done, end));
                    self.advance(length + 2);
                    if missing == 1 {
                        self.at = At::Start;
                        return Ok(Some(self.done));
                    }
                    self.at = At::Header(missing - 1);
                }
            }
        }
    }

    /// Returns the length that `bytes` must have, at least, before parsing can continue; 0 if that
    /// is not known.
    #[must_use]
    pub fn needed(&self) -> usize {
        match self.at {
            At::Bulk(length, _) => self.done + length + 2,
            At::Start | At::Header(_) => 0,
        }
    }

    /// Returns the memory in bytes that it holds.
    #[must_use]
    pub fn held(&self) -> usize {
        self.places.capacity() * size_of::<(usize, usize)>() + self.inline.capacity()
    }

    /// Returns the arguments of the complete command, from the bytes that were parsed last.
    #[must_use]
    pub fn args<'a>(&'a self, bytes: &'a [u8]) -> Args<'a> {
        let from = if self.is_inline { &self.inline } else { bytes };
        let places = self.places.iter();
        places
            .filter_map(|(start, end)| from.get(*start..*end))
            .collect()
    }

    /// Returns the arguments of the complete command, borrowed from `bytes` alone; `None` for an
    /// inline command, whose arguments the parser holds.
    #[must_use]
    pub fn array_args<'a>(&self, bytes: &'a [u8]) -> Option<Args<'a>> {
        let places = (!self.is_inline).then(|| self.places.iter())?;
        Some(
            places
                .filter_map(|(start, end)| bytes.get(*start..*end))
                .collect(),
        )
    }

    /// Forgets the arguments, and prepares for the next command.
    pub fn clear(&mut self) {
        self.at = At::Start;
        self.done = 0;
        self.searched = 0;
        self.is_inline = false;
        self.places.clear();
        self.places.shrink_to(KEPT);
        self.inline.clear();
        self.inline.shrink_to(KEPT);
    }

    fn advance(&mut self, by: usize) {
        self.done += by;
        self.searched = 0;
    }

    /// Returns the line that begins at `done`, without its end. The first carriage return ends it,
    /// together with the byte after it.
    fn line<'a>(
        &mut self,
        bytes: &'a [u8],
        too_long: ProtocolError,
    ) -> Result<Option<&'a [u8]>, ProtocolError> {
        let rest = bytes.get(self.done..).unwrap_or_default();
        let new = rest.get(self.searched..).unwrap_or_default();
        // The byte after the carriage return may not have come yet.
        match new.iter().position(|byte| *byte == b'\r') {
            Some(at) if self.searched + at + 1 < rest.len() => Ok(rest.get(..self.searched + at)),
            found => {
                self.searched += found.unwrap_or(new.len());
                if self.searched > MAX_LINE {
                    return Err(too_long);
                }
                Ok(None)
            }
        }
    }

    fn parse_inline(&mut self, bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
        let new = bytes.get(self.searched..).unwrap_or_default();
        let Some(at) = new.iter().position(|byte| *byte == b'\n') else {
            self.searched = bytes.len();
            if bytes.len() > MAX_LINE {
                return Err(ProtocolError::LongInline);
            }
            return Ok(None);
        };
        let end = self.searched + at;
        self.is_inline = true;
        let line = &bytes[..end];
        self.split(line.strip_suffix(b"\r").unwrap_or(line))?;
        Ok(Some(end + 1))
    }

    /// Splits a line at its spaces, and removes quotes.
    fn split(&mut self, line: &[u8]) -> Result<(), ProtocolError> {
        let mut rest = line;
        loop {
            rest = rest.trim_ascii_start();
            if rest.is_empty() {
                return Ok(());
            }
            let start = self.inline.len();
            loop {
                match rest {
                    [] => break,
                    [b'"', after @ ..] => {
                        rest = self.double_quoted(after)?;
                        break;
                    }
                    [b'\'', after @ ..] => {
                        rest = self.single_quoted(after)?;
                        break;
                    }
                    [b' ' | b'\n' | b'\r' | b'\t' | 0, ..] => break,
                    [byte, after @ ..] => {
                        self.inline.push(*byte);
                        rest = after;
                    }
                }
            }
            // `trim_ascii_start` does not take a zero byte for a space.
            rest = rest.strip_prefix(&[0]).unwrap_or(rest);
            self.places.push((start, self.inline.len()));
        }
    }

    fn double_quoted<'a>(&mut self, mut rest: &'a [u8]) -> Result<&'a [u8], ProtocolError> {
        loop {
            let (byte, after) = match rest {
                [b'"', after @ ..] => return ended(after),
                [b'\\', b'x', high, low, after @ ..]
                    if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
                {
                    (hex(*high) << 4 | hex(*low), after)
                }
                [b'\\', escaped, after @ ..] => {
                    let byte = match escaped {
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        b'b' => 8,
                        b'a' => 7,
                        other => *other,
                    };
                    (byte, after)
                }
                [byte, after @ ..] => (*byte, after),
                [] => return Err(ProtocolError::Quotes),
            };
            self.inline.push(byte);
            rest = after;
        }
    }

    fn single_quoted<'a>(&mut self, mut rest: &'a [u8]) -> Result<&'a [u8], ProtocolError> {
        loop {
            let (byte, after) = match rest {
                [b'\\', b'\'', after @ ..] => (b'\'', after),
                [b'\'', after @ ..] => return ended(after),
                [byte, after @ ..] => (*byte, after),
                [] => return Err(ProtocolError::Quotes),
            };
            self.inline.push(byte);
            rest = after;
        }
    }
}

/// Requires a space, or the end, after a closing quote.
fn ended(after: &[u8]) -> Result<&[u8], ProtocolError> {
    match after.first() {
        Some(byte) if !byte.is_ascii_whitespace() => Err(ProtocolError::Quotes),
        _ => Ok(after),
    }
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit.wrapping_sub(b'A').wrapping_add(10),
    }
}

/// Parses the header of a short bulk string at the start of these bytes. Returns the string's
/// length, and the header's.
fn short_length(bytes: Option<&[u8]>) -> Option<(usize, usize)> {
    match *bytes? {
        [b'$', digit @ b'0'..=b'9', b'\r', _, ..] => Some((usize::from(digit - b'0'), 4)),
        [b'$', ten @ b'1'..=b'9', digit @ b'0'..=b'9', b'\r', _, ..] => {
            let (ten, digit) = (usize::from(ten - b'0'), usize::from(digit - b'0'));
            Some((10 * ten + digit, 5))
        }
        _ => None,
    }
}

/// Parses the number in a header.
fn number(digits: &[u8]) -> Option<i64> {
    if let [digit @ b'0'..=b'9'] = digits {
        return Some(i64::from(digit - b'0'));
    }
    crate::parse::integer(digits).ok()
}

/// Returns the length of the first reply in `bytes`, a reply of this server; `None` if it is not
/// complete.
#[must_use]
pub fn reply_length(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut missing: u64 = 1;
    while missing > 0 {
        missing -= 1;
        let rest = bytes.get(at..)?;
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let (kind, digits) = rest.get(..end)?.split_first()?;
        at += end + 2;
        let length = || number(digits).map(|number| u64::try_from(number).unwrap_or(0));
        match kind {
            b'$' | b'=' | b'!' if digits != b"-1" => {
                at = at
                    .checked_add(usize::try_from(length()?).ok()?)?
                    .checked_add(2)?;
            }
            b'*' | b'~' | b'>' => missing = missing.checked_add(length()?)?,
            b'%' => missing = missing.checked_add(length()?.checked_mul(2)?)?,
            _ => {}
        }
    }
    (at <= bytes.len()).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Parses all commands in `input`, which comes in pieces that end at `cuts`. Returns them, and
    /// the error if there is one.
    fn commands(input: &[u8], cuts: &[usize]) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolError>) {
        let mut parser = Parser::default();
        let mut found = Vec::new();
        let (mut start, mut cuts) = (0, cuts.to_vec());
        cuts.push(input.len());
        cuts.sort_unstable();
        for cut in cuts {
            loop {
                let bytes = &input[start..cut];
                match parser.parse(bytes, Limits::default()) {
                    Ok(Some(length)) => {
                        let owned = |args: Args<'_>| args.iter().map(|arg| arg.to_vec()).collect();
                        found.push(owned(parser.args(bytes)));
                        start += length;
                        parser.clear();
                    }
                    Ok(None) => break,
                    Err(e) => return (found, Some(e)),
                }
            }
        }
        (found, None)
    }

    fn only(input: &str) -> Result<Vec<String>, String> {
        let (commands, error) = commands(input.as_bytes(), &[]);
        match error {
            Some(e) => Err(e.to_string()),
            None => {
                assert_eq!(commands.len(), 1, "{input:?}");
                let args = commands[0].iter();
                Ok(args
                    .map(|arg| String::from_utf8_lossy(arg).into_owned())
                    .collect())
            }
        }
    }

    #[test]
    fn arrays_of_bulks_are_commands() {
        assert_eq!(
            only("*2\r\n$4\r\nECHO\r\n$5\r\na\r\nbc\r\n").unwrap(),
            ["ECHO", "a\r\nbc"]
        );
        assert_eq!(only("*1\r\n$0\r\n\r\n").unwrap(), [""]);
        for nothing in ["*0\r\n", "*-1\r\n", "\r\n", "\n", "   \r\n"] {
            assert!(only(nothing).unwrap().is_empty(), "{nothing:?}");
        }
        let (found, error) = commands(b"PING\r\n*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPI", &[]);
        assert_eq!((found.len(), error), (2, None));
    }

    #[test]
    fn inline_commands_may_be_quoted() {
        assert_eq!(only("SET  a b\r\n").unwrap(), ["SET", "a", "b"]);
        assert_eq!(only("set a\tb\n").unwrap(), ["set", "a", "b"]);
        assert_eq!(
            only("x \"a b\\n\\x41\\\"\\q\" 'c\\'\\n' ''\n").unwrap(),
            ["x", "a b\nA\"q", "c'\\n", ""]
        );
        for bad in ["x \"a\n", "x 'a\n", "x \"a\"b\n", "x 'a'b\n", "x \"a\\\"\n"] {
            assert_eq!(only(bad).unwrap_err(), "unbalanced quotes in request");
        }
    }

    #[test]
    fn what_is_no_request_is_told_apart() {
        let long = "x".repeat(MAX_LINE + 1);
        let cases = [
            ("*x\r\n".to_owned(), "invalid multibulk length"),
            ("*1048577\r\n".to_owned(), "invalid multibulk length"),
            (
                "*99999999999999999999\r\n".to_owned(),
                "invalid multibulk length",
            ),
            ("*1\r\n:1\r\n".to_owned(), "expected '$', got ':'"),
            ("*1\r\n\r\n".to_owned(), "expected '$', got ' '"),
            ("*1\r\n$-1\r\n".to_owned(), "invalid bulk length"),
            ("*1\r\n$x\r\n".to_owned(), "invalid bulk length"),
            ("*1\r\n$536870913\r\n".to_owned(), "invalid bulk length"),
            (format!("*{long}"), "too big mbulk count string"),
            (format!("*1\r\n${long}"), "too big bulk count string"),
            (long, "too big inline request"),
        ];
        for (input, text) in cases {
            assert_eq!(only(&input).unwrap_err(), text, "{input:.20}");
        }
        let unauthenticated = Limits {
            unauthenticated: true,
            ..Limits::default()
        };
        let told = |input: &[u8]| Parser::default().parse(input, unauthenticated).unwrap_err();
        assert_eq!(told(b"*11\r\n"), ProtocolError::UnauthenticatedCount);
        assert_eq!(
            told(b"*1\r\n$16385\r\n"),
            ProtocolError::UnauthenticatedLength
        );
    }

    #[test]
    fn announcements_cost_nothing() {
        let mut parser = Parser::default();
        let input = b"*1048576\r\n$536870912\r\nabc";
        assert_eq!(parser.parse(input, Limits::default()), Ok(None));
        assert!(parser.places.capacity() < KEPT && parser.inline.capacity() == 0);
        assert_eq!(parser.needed(), 10 + 12 + (512 << 20) + 2);
    }

    #[test]
    fn replies_end_where_they_should() {
        for reply in [
            "+OK\r\n",
            "-ERR x\r\n",
            ":1\r\n",
            "$-1\r\n",
            "*-1\r\n",
            "_\r\n",
            "$3\r\na\r\n\r\n",
            "*2\r\n*1\r\n:1\r\n$0\r\n\r\n",
            "%1\r\n+a\r\n,1.5\r\n",
            "~1\r\n#t\r\n",
            "=5\r\ntxt:x\r\n",
        ] {
            let more = format!("{reply}:7\r\n");
            assert_eq!(
                reply_length(more.as_bytes()),
                Some(reply.len()),
                "{reply:?}"
            );
            let short = &reply.as_bytes()[..reply.len() - 1];
            assert_eq!(reply_length(short), None, "{reply:?}");
        }
    }

    fn encoded(command: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
        for arg in command {
            bytes.extend(format!("${}\r\n", arg.len()).bytes());
            bytes.extend(arg);
            bytes.extend(b"\r\n");
        }
        bytes
    }

    proptest! {
        #[test]
        fn it_does_not_matter_how_bytes_come(
            sent in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..5), 0..5),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let input: Vec<u8> = sent.iter().flat_map(|command| encoded(command)).collect();
            let cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(input.len() + 1)).collect();
            let (found, error) = commands(&input, &cuts);
            prop_assert_eq!(error, None);
            prop_assert_eq!(found, sent);
        }

        #[test]
        fn garbage_is_refused_or_taken_the_same_way_whole_and_in_pieces(
            input in prop::collection::vec(
                prop::sample::select(b"*$\r\n\r\n0123 -\"'\\x\0ab".to_vec()), 0..60),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(input.len() + 1)).collect();
            prop_assert_eq!(commands(&input, &cuts), commands(&input, &[]));
        }

        #[test]
        fn any_bytes_are_survived(input in prop::collection::vec(any::<u8>(), 0..200)) {
            commands(&input, &[]);
            let length = reply_length(&input);
            prop_assert!(length.is_none_or(|length| length <= input.len()));
        }
    }
}
