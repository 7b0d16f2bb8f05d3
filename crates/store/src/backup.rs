//! Backups: a snapshot as a stream of bytes, and restoring a store from it.
//!
//! ```text
//! backup   | "BCSTORE\n" | format (32) | timestamp (64)  | CRC-32C (32) of these | frames ...
//! frame    | kind (8) | length (32) | content ... | CRC-32C (32) of kind, length and content
//!   1      | number (32) | name ...                                                       a keyspace, before its entries
//!   2      | entries: keyspace (32) | key length (32) | value length (32) | expiry (64) | key | value | ...
//!   3      | keyspaces (64) | entries (64)                                                 the end
//! ```
//!
//! Numbers are little-endian. A backup without its end is damaged. Writers go on while a backup is
//! made; it has what its snapshot sees.

use crate::batch::Batch;
use crate::catalogue::Keyspace;
use crate::error::{BackupError, StoreError};
use crate::format::StoreFormat;
use crate::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use crate::options::StoreOptions;
use crate::root::WORD_UNFINISHED;
use crate::snapshot::Snapshot;
use crate::store::Store;
use crate::tree::Clustered;
use bristlecone_pmem::{Media, Pool, VersionError};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::Arc;

const MAGIC: [u8; 8] = *b"BCSTORE\n";
/// Version of the format of backups that this build writes, and the only one that it reads.
pub const FORMAT: u32 = 1;
const KEYSPACE: u8 = 1;
const ENTRIES: u8 = 2;
const END: u8 = 3;
/// Bytes of entries after which a frame is written.
const FRAME: usize = 256 << 10;
/// Bytes of an entry before its key.
const ENTRY: usize = 20;
/// Most bytes of the content of a frame: one entry goes beyond those of a full one.
const MAX_FRAME: usize = FRAME + ENTRY + MAX_KEY_BYTES + MAX_VALUE_BYTES;

/// Counts of a backup or a restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupReport {
    /// Timestamp of the snapshot.
    pub timestamp: u64,
    /// Keyspaces.
    pub keyspaces: u64,
    /// Keys.
    pub entries: u64,
    /// Bytes of the stream.
    pub bytes: u64,
}

/// Returns whether a stream that starts with these bytes is a backup, of any format version. Eight
/// bytes are enough.
#[must_use]
pub fn is_backup(start: &[u8]) -> bool {
    start.starts_with(&MAGIC)
}

struct Sink<'w, W: Write> {
    out: &'w mut W,
    bytes: u64,
}

impl<W: Write> Sink<'_, W> {
    fn raw(&mut self, bytes: &[u8]) -> Result<(), BackupError> {
        self.out.write_all(bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn frame(&mut self, kind: u8, content: &[u8]) -> Result<(), BackupError> {
        let mut head = [kind, 0, 0, 0, 0];
        // The longest content is one entry's, of little more than 512 MiB.
        head[1..].copy_from_slice(&(content.len() as u32).to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&head), content);
        self.raw(&head)?;
        self.raw(content)?;
        self.raw(&crc.to_le_bytes())
    }
}

impl<M: Media> Snapshot<M> {
    /// Writes the snapshot's content to `out`. Expired values are left out.
    ///
    /// # Errors
    /// [`BackupError`]; what was written is unusable then.
    pub fn backup(&self, out: &mut impl Write) -> Result<BackupReport, BackupError> {
        let mut sink = Sink { out, bytes: 0 };
        let mut report = BackupReport {
            timestamp: self.timestamp(),
            ..BackupReport::default()
        };
        let mut head = Vec::from(MAGIC);
        head.extend(FORMAT.to_le_bytes());
        head.extend(report.timestamp.to_le_bytes());
        let crc = crc32c::crc32c(&head);
        head.extend(crc.to_le_bytes());
        sink.raw(&head)?;
        for keyspace in self.keyspaces()? {
            let mut content = Vec::from(keyspace.number().to_le_bytes());
            content.extend(keyspace.name().as_bytes());
            sink.frame(KEYSPACE, &content)?;
            report.keyspaces += 1;
            let mut cursor = self.cursor::<Vec<u8>>(&keyspace, ..);
            loop {
                // Collected a frame at a time, so that no epoch is pinned while a slow stream is
                // written.
                let mut content = Vec::with_capacity(FRAME);
                cursor.next_while(|key, entry| {
                    content.extend(keyspace.number().to_le_bytes());
                    content.extend((key.len() as u32).to_le_bytes());
                    content.extend((entry.value.len() as u32).to_le_bytes());
                    content.extend(entry.expires_at.unwrap_or(0).to_le_bytes());
                    content.extend_from_slice(key);
                    content.extend_from_slice(entry.value);
                    report.entries += 1;
                    content.len() < FRAME
                })?;
                if content.is_empty() {
                    break;
                }
                sink.frame(ENTRIES, &content)?;
            }
        }
        let mut end = Vec::from(report.keyspaces.to_le_bytes());
        end.extend(report.entries.to_le_bytes());
        sink.frame(END, &end)?;
        sink.out.flush()?;
        report.bytes = sink.bytes;
        Ok(report)
    }
}

struct Source<'r, R: Read> {
    from: &'r mut R,
    at: u64,
}

impl<R: Read> Source<'_, R> {
    fn damaged(&self, what: impl Into<String>) -> BackupError {
        BackupError::Damaged {
            what: what.into(),
            at: self.at,
        }
    }

    /// Reads exactly `len` bytes. A false length does not allocate that much memory.
    fn take(&mut self, len: usize) -> Result<Vec<u8>, BackupError> {
        let mut bytes = Vec::new();
        self.from
            .by_ref()
            .take(len as u64)
            .read_to_end(&mut bytes)?;
        if bytes.len() < len {
            return Err(self.damaged("it ends too early"));
        }
        self.at += len as u64;
        Ok(bytes)
    }

    fn head(&mut self) -> Result<u64, BackupError> {
        let magic = self.take(8).map_err(|e| match e {
            BackupError::Damaged { .. } => BackupError::NotABackup,
            e => e,
        })?;
        if magic != MAGIC {
            return Err(BackupError::NotABackup);
        }
        let rest = self.take(16)?;
        let found = number(&rest[..4]) as u32;
        let crc = crc32c::crc32c_append(crc32c::crc32c(&magic), &rest[..12]);
        if u64::from(crc) != number(&rest[12..]) {
            return Err(self.damaged("its head fails its checksum"));
        }
        let newest = u64::from(FORMAT);
        VersionError::check("backup", found.into(), newest..=newest)?;
        Ok(number(&rest[4..12]))
    }

    fn frame(&mut self) -> Result<(u8, Vec<u8>), BackupError> {
        let head = self.take(5)?;
        let len = number(&head[1..]) as usize;
        if len > MAX_FRAME {
            return Err(self.damaged("a frame claims more bytes than an entry can have"));
        }
        let content = self.take(len)?;
        let crc = crc32c::crc32c_append(crc32c::crc32c(&head), &content);
        if number(&self.take(4)?) != u64::from(crc) {
            return Err(self.damaged("a frame fails its checksum"));
        }
        Ok((head[0], content))
    }
}

/// Reads a little-endian number of up to eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A parsed entry: keyspace, expiry, key, value.
type Parsed<'a> = (u32, u64, &'a [u8], &'a [u8]);

/// Parses the first entry of a frame's content and advances past it.
fn entry<'a>(content: &mut &'a [u8]) -> Option<Parsed<'a>> {
    let (head, rest) = content.split_at_checked(ENTRY)?;
    let (key, rest) = rest.split_at_checked(number(&head[4..8]) as usize)?;
    let (value, rest) = rest.split_at_checked(number(&head[8..12]) as usize)?;
    *content = rest;
    Some((number(&head[..4]) as u32, number(&head[12..]), key, value))
}

impl<M: Media> Store<M> {
    /// Writes the store's current content to `out`. See [`Snapshot::backup`].
    ///
    /// # Errors
    /// [`BackupError`]
    pub fn backup(&self, out: &mut impl Write) -> Result<BackupReport, BackupError> {
        self.snapshot().backup(out)
    }

    /// Makes a store from a backup. A crash leaves an unfinished store, which can only be
    /// [removed](Self::remove).
    ///
    /// # Errors
    /// [`BackupError`]; no store is left behind.
    pub fn restore(
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &StoreOptions,
        from: &mut impl Read,
    ) -> Result<(Self, BackupReport), BackupError> {
        Self::restore_as(pool, name, options, &Clustered, from)
    }

    /// As [`restore`](Self::restore), to a store of that format. It need not be that of the
    /// original store.
    ///
    /// # Errors
    /// As there.
    #[doc(hidden)]
    pub fn restore_as(
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &StoreOptions,
        format: &dyn StoreFormat<M>,
        from: &mut impl Read,
    ) -> Result<(Self, BackupReport), BackupError> {
        let mut source = Source { from, at: 0 };
        let timestamp = source.head()?;
        let store = Self::create_marked(pool, name, options, format, true)?;
        match store.fill(&mut source, timestamp) {
            Ok(report) => Ok((store, report)),
            Err(e) => {
                drop(store);
                // The first error is reported. If removing fails too, the rest is an unfinished
                // store.
                let _ = Self::remove(pool, name);
                Err(e)
            }
        }
    }

    fn fill(
        &self,
        source: &mut Source<'_, impl Read>,
        timestamp: u64,
    ) -> Result<BackupReport, BackupError> {
        let mut report = BackupReport {
            timestamp,
            ..BackupReport::default()
        };
        let mut keyspaces: BTreeMap<u32, Keyspace> = BTreeMap::new();
        loop {
            match source.frame()? {
                (KEYSPACE, content) => {
                    let name = content.get(4..).map(std::str::from_utf8);
                    let Some(Ok(name)) = name else {
                        return Err(source.damaged("a keyspace without a name"));
                    };
                    let id = number(&content[..4]) as u32;
                    keyspaces.insert(id, self.keyspace(name)?);
                    report.keyspaces += 1;
                }
                (ENTRIES, content) => {
                    let mut rest = content.as_slice();
                    let mut batch = Batch::new();
                    while !rest.is_empty() {
                        let Some((keyspace, expiry, key, value)) = entry(&mut rest) else {
                            return Err(source.damaged("an entry that leaves its frame"));
                        };
                        let Some(keyspace) = keyspaces.get(&keyspace) else {
                            return Err(source.damaged("an entry of no keyspace"));
                        };
                        let expires_at = (expiry != 0).then_some(expiry);
                        batch.put_expiring(keyspace, key, value, expires_at);
                        report.entries += 1;
                    }
                    self.write(batch)?;
                }
                (END, content) => {
                    if content.len() != 16
                        || number(&content[..8]) != report.keyspaces
                        || number(&content[8..]) != report.entries
                    {
                        return Err(source.damaged("it has not what its end says"));
                    }
                    break;
                }
                (kind, _) => return Err(source.damaged(format!("a frame of kind {kind}"))),
            }
        }
        let pm = self.pool().pm();
        // PERSIST: (in `publish`) the store is complete from here on; all its content is durable.
        self.shared
            .engine
            .root()
            .word(WORD_UNFINISHED)
            .publish(pm, 0);
        pm.commit().map_err(StoreError::from)?;
        report.bytes = source.at;
        Ok(report)
    }
}
