//! Files in memory, in pages that copies share; a directory of them, and the way to and from disk.

use super::PowerCutError;
use crate::workload::mix;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const PAGE: usize = 4096;

/// The bytes of a file. Pages that are absent are zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    pages: Vec<Option<Arc<[u8; PAGE]>>>,
    length: u64,
}

impl Bytes {
    /// Returns their number.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Makes the file `to` bytes long; new bytes are zero.
    pub fn resize(&mut self, to: u64) {
        if to < self.length {
            self.zero(to, self.length);
        }
        self.pages.resize(to.div_ceil(PAGE as u64) as usize, None);
        self.length = to;
    }

    /// Makes the file at least `to` bytes long.
    pub fn extend(&mut self, to: u64) {
        if to > self.length {
            self.resize(to);
        }
    }

    /// Writes at `at`, and extends the file as needed.
    pub fn write(&mut self, at: u64, mut bytes: &[u8]) {
        self.extend(at + bytes.len() as u64);
        let mut at = at as usize;
        while !bytes.is_empty() {
            let within = at % PAGE;
            let (now, rest) = bytes.split_at(bytes.len().min(PAGE - within));
            let page = self.pages[at / PAGE].get_or_insert_with(|| Arc::new([0; PAGE]));
            Arc::make_mut(page)[within..within + now.len()].copy_from_slice(now);
            at += now.len();
            bytes = rest;
        }
    }

    /// Sets the bytes from `from` to `to` to zero, as far as the file reaches.
    pub fn zero(&mut self, from: u64, to: u64) {
        let (mut at, to) = (from as usize, to.min(self.length) as usize);
        while at < to {
            let within = at % PAGE;
            let now = (to - at).min(PAGE - within);
            let page = &mut self.pages[at / PAGE];
            if now == PAGE {
                *page = None;
            } else if let Some(page) = page {
                Arc::make_mut(page)[within..within + now].fill(0);
            }
            at += now;
        }
    }

    /// Copies the bytes from `from` to `to` from another file, as far as that reaches.
    pub fn copy(&mut self, other: &Self, from: u64, to: u64) {
        let (mut at, to) = (from as usize, to.min(other.length) as usize);
        if at >= to {
            return;
        }
        self.extend(to as u64);
        while at < to {
            let within = at % PAGE;
            let now = (to - at).min(PAGE - within);
            match &other.pages[at / PAGE] {
                Some(page) if now == PAGE => self.pages[at / PAGE] = Some(Arc::clone(page)),
                Some(page) => self.write(at as u64, &page[within..within + now]),
                None => self.zero(at as u64, (at + now) as u64),
            }
            at += now;
        }
    }

    #[cfg(test)]
    pub(super) fn byte(&self, at: u64) -> u8 {
        let at = at as usize;
        self.pages[at / PAGE]
            .as_ref()
            .map_or(0, |page| page[at % PAGE])
    }

    fn save(&self, path: &Path) -> std::io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.length)?;
        let mut run = Vec::new();
        for (i, page) in self.pages.iter().enumerate() {
            if let Some(page) = page {
                run.extend_from_slice(&page[..]);
            }
            let ends = self.pages.get(i + 1).is_none_or(Option::is_none);
            if ends && !run.is_empty() {
                let from = ((i + 1) * PAGE - run.len()) as u64;
                // The last page may go beyond the end.
                let length = (self.length - from).min(run.len() as u64) as usize;
                file.write_all_at(&run[..length], from)?;
                run.clear();
            }
        }
        Ok(())
    }
}

/// A directory: its files and those of directories in it, by their path from there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// The files.
    pub files: BTreeMap<String, Bytes>,
    /// The directories in it.
    pub folders: BTreeSet<String>,
}

impl Image {
    /// Writes the image to `to`, which is emptied first.
    ///
    /// # Errors
    /// [`PowerCutError::Io`]
    pub fn save(&self, to: &Path) -> Result<(), PowerCutError> {
        let io = |e| PowerCutError::io(to, "writing an image", e);
        if to.exists() {
            fs::remove_dir_all(to).map_err(io)?;
        }
        fs::create_dir_all(to).map_err(io)?;
        for folder in &self.folders {
            fs::create_dir_all(to.join(folder)).map_err(io)?;
        }
        for (name, bytes) in &self.files {
            bytes.save(&to.join(name)).map_err(io)?;
        }
        Ok(())
    }
}

impl Image {
    /// Returns a number that is another one for another image.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut sum = 0;
        let mut add = |word: u64| sum = mix(sum ^ word);
        for name in self.folders.iter().chain(self.files.keys()) {
            name.bytes().for_each(|byte| add(byte.into()));
            add(u64::MAX);
        }
        for bytes in self.files.values() {
            add(bytes.length);
            for (i, page) in bytes.pages.iter().enumerate() {
                let Some(page) = page.as_ref().filter(|page| page[..] != [0; PAGE]) else {
                    continue;
                };
                add(i as u64);
                for word in page.as_chunks::<8>().0 {
                    add(u64::from_le_bytes(*word));
                }
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_behave_as_a_file_does() {
        let (mut bytes, mut model) = (Bytes::default(), Vec::<u8>::new());
        let mut draw = super::super::Draw::of(1, 2, 3);
        for i in 0..400 {
            let (at, length) = (draw.below(30_000) as usize, draw.below(9000) as usize);
            match draw.below(4) {
                0 => {
                    bytes.resize(at as u64);
                    model.resize(at, 0);
                }
                1 => {
                    bytes.zero(at as u64, (at + length) as u64);
                    let end = (at + length).min(model.len());
                    model.get_mut(at..end).unwrap_or_default().fill(0);
                }
                2 => {
                    let mut other = Bytes::default();
                    other.write(at as u64 + 5, &vec![i as u8; length]);
                    bytes.copy(&other, at as u64, (at + length) as u64);
                    if length > 0 {
                        model.resize(model.len().max(at + length), 0);
                        let zeros = length.min(5);
                        model[at..at + zeros].fill(0);
                        model[at + zeros..at + length].fill(i as u8);
                    }
                }
                _ => {
                    bytes.write(at as u64, &vec![i as u8; length]);
                    model.resize(model.len().max(at + length), 0);
                    model[at..at + length].fill(i as u8);
                }
            }
            assert_eq!(bytes.len(), model.len() as u64);
        }
        let dir = tempfile::tempdir().unwrap();
        let files = BTreeMap::from([("sub/file".to_owned(), bytes)]);
        let folders = BTreeSet::from(["sub".to_owned()]);
        let image = Image { files, folders };
        image.save(&dir.path().join("image")).unwrap();
        let found = fs::read(dir.path().join("image/sub/file")).unwrap();
        assert!(found == model);
    }
}
