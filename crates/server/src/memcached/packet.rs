//! The packets of the binary protocol.
//!
//! ```text
//! magic (1) | opcode (1) | key length (2) | extras length (1) | 0 (1) | status, or reserved (2)
//! length of extras, key and value (4) | opaque (4) | cas (8) | extras | key | value
//! ```

use super::expiry;
use crate::items::change::{Mode, Put};
use crate::reply::{Out, Protocol};

pub(super) const HEAD: usize = 24;
pub(super) const REQUEST: u8 = super::BINARY;
const RESPONSE: u8 = 0x81;
/// The status of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Status {
    NotFound = 0x01,
    Exists = 0x02,
    TooLarge = 0x03,
    Invalid = 0x04,
    NotStored = 0x05,
    NotANumber = 0x06,
    Auth = 0x20,
    Unknown = 0x81,
    NoMemory = 0x82,
    Internal = 0x84,
}

impl Status {
    pub fn text(self) -> &'static str {
        match self {
            Self::NotFound => "Not found",
            Self::Exists => "Data exists for key.",
            Self::TooLarge => "Too large.",
            Self::Invalid => "Invalid arguments",
            Self::NotStored => "Not stored.",
            Self::NotANumber => "Non-numeric server-side value for incr or decr",
            Self::Auth => "Auth failure.",
            Self::Unknown => "Unknown command",
            Self::NoMemory => "Out of memory",
            Self::Internal => "Internal error",
        }
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Get { with_key: bool },
    Touch,
    GetAndTouch { with_key: bool },
    Store(Mode),
    Delete,
    Count { adds: bool },
    Quit,
    Flush,
    Noop,
    Version,
    Stat,
    ListMechanisms,
    Login,
}

/// Returns what an opcode stands for, and whether it is a quiet one.
pub(super) fn op(code: u8) -> Option<(Op, bool)> {
    let (with_key, loud, quiet) = (true, false, true);
    Some(match code {
        0x00 => (Op::Get { with_key: false }, loud),
        0x01 => (Op::Store(Mode::Set), loud),
        0x02 => (Op::Store(Mode::Add), loud),
        0x03 => (Op::Store(Mode::Replace), loud),
        0x04 => (Op::Delete, loud),
        0x05 => (Op::Count { adds: true }, loud),
        0x06 => (Op::Count { adds: false }, loud),
        0x07 => (Op::Quit, loud),
        0x08 => (Op::Flush, loud),
        0x09 => (Op::Get { with_key: false }, quiet),
        0x0a => (Op::Noop, loud),
        0x0b => (Op::Version, loud),
        0x0c => (Op::Get { with_key }, loud),
        0x0d => (Op::Get { with_key }, quiet),
        0x0e => (Op::Store(Mode::Append), loud),
        0x0f => (Op::Store(Mode::Prepend), loud),
        0x10 => (Op::Stat, loud),
        0x11 => (Op::Store(Mode::Set), quiet),
        0x12 => (Op::Store(Mode::Add), quiet),
        0x13 => (Op::Store(Mode::Replace), quiet),
        0x14 => (Op::Delete, quiet),
        0x15 => (Op::Count { adds: true }, quiet),
        0x16 => (Op::Count { adds: false }, quiet),
        0x17 => (Op::Quit, quiet),
        0x18 => (Op::Flush, quiet),
        0x19 => (Op::Store(Mode::Append), quiet),
        0x1a => (Op::Store(Mode::Prepend), quiet),
        0x1c => (Op::Touch, loud),
        0x1d => (Op::GetAndTouch { with_key: false }, loud),
        0x1e => (Op::GetAndTouch { with_key: false }, quiet),
        0x20 => (Op::ListMechanisms, loud),
        // A step of a mechanism that has only one is a log-in that was not begun.
        0x21 | 0x22 => (Op::Login, loud),
        0x23 => (Op::GetAndTouch { with_key }, loud),
        0x24 => (Op::GetAndTouch { with_key }, quiet),
        _ => return None,
    })
}

/// The head of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub code: u8,
    pub key: usize,
    pub extras: usize,
    pub body: usize,
    pub opaque: [u8; 4],
    pub cas: u64,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().unwrap_or([0; N])
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(number(bytes, at))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(number(bytes, at))
}

/// A request as far as it has come: the value of a store may be missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub head: Head,
    pub extras: &'a [u8],
    pub key: &'a [u8],
    /// The length of the value.
    pub value: usize,
}

impl Head {
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let head = bytes.get(..HEAD)?;
        Some(Self {
            code: head[1],
            key: usize::from(u16::from_be_bytes(number(head, 2))),
            extras: usize::from(head[4]),
            body: u32_at(head, 8) as usize,
            opaque: number(head, 12),
            cas: u64_at(head, 16),
        })
    }

    /// Returns true if the lengths contradict one another.
    pub fn is_crooked(&self) -> bool {
        self.key + self.extras > self.body
    }
}

impl<'a> Request<'a> {
    /// Returns the request at the start of `bytes`, once all but its value is there.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let head = Head::parse(bytes)?;
        let rest = bytes.get(HEAD..HEAD + head.extras + head.key)?;
        let (extras, key) = rest.split_at(head.extras);
        Some(Self {
            head,
            extras,
            key,
            value: head.body.saturating_sub(head.extras + head.key),
        })
    }

    /// Returns its length without the value.
    pub fn start(&self) -> usize {
        HEAD + self.head.extras + self.head.key
    }

    pub fn end(&self) -> usize {
        self.start() + self.value
    }

    /// Returns true if its parts are those that the operation has.
    pub fn is_formed(&self, op: Op) -> bool {
        let Head { key, extras, .. } = self.head;
        let no_value = self.value == 0;
        match op {
            Op::Get { .. } | Op::Delete => extras == 0 && key > 0 && no_value,
            Op::Touch | Op::GetAndTouch { .. } => extras == 4 && key > 0,
            Op::Store(Mode::Append | Mode::Prepend) => extras == 0 && key > 0,
            Op::Store(_) => extras == 8 && key > 0,
            Op::Count { .. } => extras == 20 && key > 0 && no_value,
            Op::Flush => (extras == 0 || extras == 4) && key == 0 && no_value,
            Op::Quit | Op::Noop | Op::Version | Op::ListMechanisms => {
                extras == 0 && key == 0 && no_value
            }
            Op::Stat => extras == 0,
            Op::Login => extras == 0 && key > 0,
        }
    }

    /// Returns the item that a store without a condition stores, if it is one.
    pub fn plain_put(&self, bytes: &'a [u8], now: u64) -> Option<(Put<'a>, bool)> {
        let (Op::Store(Mode::Set), quiet) = op(self.head.code)? else {
            return None;
        };
        if self.head.cas != 0 || self.head.is_crooked() || !self.is_formed(Op::Store(Mode::Set)) {
            return None;
        }
        let value = bytes.get(self.start()..self.end())?;
        Some((self.put(Mode::Set, value, now), quiet))
    }

    pub fn put(&self, mode: Mode, value: &'a [u8], now: u64) -> Put<'a> {
        let is_plain = matches!(mode, Mode::Set | Mode::Add | Mode::Replace | Mode::Cas);
        let (flags, time) = if is_plain {
            (u32_at(self.extras, 0), u32_at(self.extras, 4))
        } else {
            (0, 0)
        };
        Put {
            mode,
            key: self.key,
            value,
            flags,
            expires_at: expiry(i64::from(time), now),
            cas: self.head.cas,
            stale: false,
            binary: false,
        }
    }
}

/// A response without its opcode and opaque, which are the request's.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Response<'a> {
    pub status: u16,
    pub extras: &'a [u8],
    pub key: &'a [u8],
    pub value: &'a [u8],
    pub cas: u64,
}

pub(super) fn respond(out: &mut Out<'_>, head: &Head, response: Response<'_>) {
    let Response {
        status,
        extras,
        key,
        value,
        cas,
    } = response;
    let mut bytes = [0; HEAD];
    bytes[0] = RESPONSE;
    bytes[1] = head.code;
    bytes[2..4].copy_from_slice(&(key.len() as u16).to_be_bytes());
    bytes[4] = extras.len() as u8;
    bytes[6..8].copy_from_slice(&status.to_be_bytes());
    let body = (extras.len() + key.len() + value.len()) as u32;
    bytes[8..12].copy_from_slice(&body.to_be_bytes());
    bytes[12..16].copy_from_slice(&head.opaque);
    bytes[16..24].copy_from_slice(&cas.to_be_bytes());
    out.raw(&bytes);
    out.raw(extras);
    out.raw(key);
    out.raw(value);
}

pub(super) fn respond_error(out: &mut Out<'_>, head: &Head, status: Status, text: &str) {
    let response = Response {
        status: status as u16,
        value: text.as_bytes(),
        ..Response::default()
    };
    respond(out, head, response);
}

/// Appends the last response of a connection that cannot go on.
pub(super) fn fail(text: &str, out: &mut Vec<u8>) {
    let head = Head {
        code: 0,
        key: 0,
        extras: 0,
        body: 0,
        opaque: [0; 4],
        cas: 0,
    };
    let mut out = Out::new(out, Protocol::Resp2);
    respond_error(&mut out, &head, Status::Internal, text);
}

pub(super) fn respond_miss(out: &mut Out<'_>, head: &Head, key: &[u8]) {
    if key.is_empty() {
        return respond_error(out, head, Status::NotFound, Status::NotFound.text());
    }
    let response = Response {
        status: Status::NotFound as u16,
        key,
        ..Response::default()
    };
    respond(out, head, response);
}
