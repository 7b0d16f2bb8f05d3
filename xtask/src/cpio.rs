//! Writes the archive that a Linux kernel unpacks as its first file system.
//!
//! Format "newc": for each file a header of 110 ASCII characters, the name with a NUL, the content;
//! header-with-name and content are each padded to four bytes. The name `TRAILER!!!` ends it.

use std::collections::BTreeSet;

/// An archive being built, in memory.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    inodes: u32,
    folders: BTreeSet<String>,
}

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

impl Archive {
    /// Adds a file that may be executed, and the folders above it.
    pub fn file(&mut self, path: &str, content: &[u8]) {
        self.parents(path);
        self.entry(path, PROGRAM, content);
    }

    /// Adds a symbolic link, and the folders above it.
    pub fn link(&mut self, path: &str, to: &str) {
        self.parents(path);
        self.entry(path, LINK, to.as_bytes());
    }

    /// Adds a folder and those above it.
    pub fn folder(&mut self, path: &str) {
        self.parents(path);
        if self.folders.insert(path.to_owned()) {
            self.entry(path, FOLDER, &[]);
        }
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn parents(&mut self, path: &str) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.folder(parent);
        }
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.inodes += 1;
        let links = if mode == FOLDER { 2 } else { 1 };
        let fields = [
            self.inodes,
            mode,
            0, // owner
            0, // group
            links,
            0, // modification time
            content.len() as u32,
            0, // device, major
            0, // device, minor
            0, // device named, major
            0, // device named, minor
            path.len() as u32 + 1,
            0, // checksum, unused by this format
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_padding_are_as_the_format_says() {
        let mut archive = Archive::default();
        archive.file("a/b", b"hello");
        archive.link("a/c", "b");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        // The folder first: 110 bytes of header, "a" and its NUL fill 112.
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[14..22], format!("{:08x}", 0o040_755).as_bytes());
        assert_eq!(&bytes[110..112], b"a\0");
        // Then the file: its name ends at 112 + 110 + 4 = 226, padded to 228.
        assert_eq!(&bytes[112..118], b"070701");
        assert_eq!(&bytes[112 + 54..112 + 62], b"00000005");
        assert_eq!(&bytes[222..226], b"a/b\0");
        assert_eq!(&bytes[228..236], b"hello\0\0\0");
        assert_eq!(&bytes[236..242], b"070701");
        let trailer = b"TRAILER!!!\0";
        assert_eq!(
            bytes
                .windows(trailer.len())
                .filter(|w| w == trailer)
                .count(),
            1
        );
        let folders = bytes.windows(8).filter(|w| w == b"000041ed").count();
        assert_eq!(folders, 1, "a folder shared by two files is there once");
    }
}
