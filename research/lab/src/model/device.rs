//! Device descriptions: TOML files, shipped or a user's own.
//!
//! `docs/device-model.md` describes every field, its unit and the source of its shipped values.
//! This module parses and checks the files. All times are in nanoseconds, rates in 10^9 bytes a
//! second.

use super::ModelError;
use serde::Deserialize;
use std::path::Path;

/// Bytes of a cache line, between caches and devices.
pub(crate) const LINE: u64 = 64;

/// A memory device and the processor in front of it. A value of this type has been checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// The origin of the description, for messages.
    file: String,
    pub(super) is: Description,
}

/// The content of a device file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Description {
    name: String,
    summary: String,
    pub geometry: Geometry,
    pub read: Reading,
    pub write: Writing,
    #[serde(default)]
    pub core: Core,
}

/// The mapping of addresses to a device.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Geometry {
    /// Modules (DIMMs, channels) that work in parallel.
    pub modules: u64,
    /// Bytes that lie on one module before the next module follows.
    pub interleave_bytes: u64,
    /// Bytes that the media reads or writes at once.
    pub media_line_bytes: u64,
}

/// The cost of reads.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reading {
    /// Load to use of a line that comes from the media.
    pub latency_ns: f64,
    /// Load to use of a line in a read buffer (an open row of DRAM).
    pub buffered_latency_ns: f64,
    /// Read buffers (open rows) of a module.
    pub buffers: u64,
    /// Bytes that lie in one read buffer.
    pub buffer_bytes: u64,
    /// Rate at which all modules together read from the media, media lines in the order of
    /// addresses.
    pub media_gbps: f64,
    /// The same, with each media line in another buffer or row than the one before.
    pub random_media_gbps: f64,
    /// Rate at which all modules together transfer lines to the processor.
    pub interface_gbps: f64,
}

/// The cost of writes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Writing {
    /// Time from a flush of a dirty line until it is durable, on an idle device.
    pub accept_ns: f64,
    /// Media lines that a module collects before it writes one (write-combining buffers).
    pub combining_buffers: u64,
    /// Media writes that may wait in a module before it takes no more lines.
    pub queue: u64,
    /// Rate at which all modules together write to the media.
    pub media_gbps: f64,
    /// True if a partly written media line is read before it is written.
    pub reads_before_partial: bool,
}

/// The processor. All caches have 64-byte lines and evict the least recently used one.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Core {
    /// Level 1 data cache of a core.
    pub l1_bytes: u64,
    /// Its ways.
    pub l1_ways: u64,
    /// Level 2 cache of a core.
    pub l2_bytes: u64,
    /// Its ways.
    pub l2_ways: u64,
    /// Load to use of a line in it.
    pub l2_ns: f64,
    /// Level 3 cache, which all cores share.
    pub l3_bytes: u64,
    /// Its ways.
    pub l3_ways: u64,
    /// Load to use of a line in it.
    pub l3_ns: f64,
    /// Load to use of a line that only another core has.
    pub peer_ns: f64,
    /// Outstanding misses of a core, and outstanding flushes apart from them.
    pub line_fill_buffers: u64,
    /// Waiting stores of a core.
    pub store_buffer: u64,
    /// Lines that the stream prefetcher runs ahead; 0 is off.
    pub stream_lines: u64,
    /// Time of the instructions between two accesses to memory.
    pub access_ns: f64,
    /// Time of the instructions around an operation: call, hash, comparison, mispredicted branches.
    pub operation_ns: f64,
    /// Time of a locked instruction, beyond waiting for its line and for the store buffer.
    pub locked_ns: f64,
    /// Issuing a flush.
    pub flush_ns: f64,
    /// Issuing a fence, with nothing to wait for.
    pub fence_ns: f64,
    /// Issuing a fence between stores; 0 on processors that keep stores in order, where it is no
    /// instruction.
    pub store_fence_ns: f64,
    /// True if a flush leaves the line in the caches, as `clwb` tries to, instead of evicting it.
    pub flush_keeps_line: bool,
    /// True if a flush waits until the one before is done, like `clflush`, and unlike `clflushopt`
    /// and `clwb`.
    pub serial_flush: bool,
}

impl Default for Core {
    fn default() -> Self {
        Self {
            l1_bytes: 32 << 10,
            l1_ways: 8,
            l2_bytes: 1 << 20,
            l2_ways: 16,
            l2_ns: 4.0,
            l3_bytes: 38 << 20,
            l3_ways: 16,
            l3_ns: 20.0,
            peer_ns: 50.0,
            line_fill_buffers: 12,
            store_buffer: 56,
            stream_lines: 8,
            access_ns: 0.5,
            operation_ns: 40.0,
            locked_ns: 5.0,
            flush_ns: 0.5,
            fence_ns: 1.0,
            store_fence_ns: 0.0,
            flush_keeps_line: false,
            serial_flush: false,
        }
    }
}

/// Name and text of every shipped device.
const SHIPPED: [(&str, &str); 6] = [
    ("dram", include_str!("../../devices/dram.toml")),
    ("nvdimm", include_str!("../../devices/nvdimm.toml")),
    ("optane", include_str!("../../devices/optane.toml")),
    ("stt-ram", include_str!("../../devices/stt-ram.toml")),
    ("pcm", include_str!("../../devices/pcm.toml")),
    ("cxl", include_str!("../../devices/cxl.toml")),
];

const NAMES: [&str; SHIPPED.len()] = {
    let mut names = [""; SHIPPED.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = SHIPPED[i].0;
        i += 1;
    }
    names
};

impl Device {
    /// Returns the shipped device of a name, or the device that the file at a path describes. An
    /// argument that contains `/` or ends in `.toml` is a path.
    ///
    /// # Errors
    /// [`ModelError`], naming the file, the field and its value.
    pub fn load(name_or_path: &str) -> Result<Self, ModelError> {
        if let Some((name, text)) = SHIPPED.iter().find(|(name, _)| *name == name_or_path) {
            return Self::parse(name, text);
        }
        if !name_or_path.contains('/') && !name_or_path.ends_with(".toml") {
            return Err(ModelError::UnknownDevice {
                name: name_or_path.into(),
            });
        }
        let path = Path::new(name_or_path);
        let text = std::fs::read_to_string(path).map_err(|source| ModelError::Read {
            path: path.into(),
            source,
        })?;
        Self::parse(name_or_path, &text)
    }

    /// Returns the names of the shipped devices.
    #[must_use]
    pub fn shipped() -> &'static [&'static str] {
        &NAMES
    }

    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.is.name
    }

    /// Returns one line about it, for people.
    #[must_use]
    pub fn summary(&self) -> &str {
        &self.is.summary
    }

    /// Returns the processor in front of it.
    #[must_use]
    pub fn core(&self) -> &Core {
        &self.is.core
    }

    /// Returns the device in front of a changed processor, such as one with a smaller cache.
    ///
    /// # Errors
    /// [`ModelError::Field`] if a changed field is out of range.
    pub fn with_core(&self, change: impl FnOnce(&mut Core)) -> Result<Self, ModelError> {
        let mut device = self.clone();
        change(&mut device.is.core);
        device.check()?;
        Ok(device)
    }

    /// Parses a description. Messages call it `file`.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn parse(file: &str, text: &str) -> Result<Self, ModelError> {
        let is = toml::from_str(text).map_err(|e| ModelError::Syntax {
            file: file.into(),
            message: e.to_string().trim_end().into(),
        })?;
        let device = Self {
            file: file.into(),
            is,
        };
        device.check()?;
        Ok(device)
    }

    /// Refuses the first field that is out of range.
    fn check(&self) -> Result<(), ModelError> {
        let c = Check(&self.file);
        let is = &self.is;
        if is.name.is_empty() || is.name.chars().any(char::is_whitespace) {
            return c.wrong("name", format!("{:?}", is.name), "one word");
        }
        let (g, r, w) = (&is.geometry, &is.read, &is.write);
        c.range("geometry.modules", g.modules, 1, 64)?;
        c.power("geometry.interleave_bytes", g.interleave_bytes, 1 << 30)?;
        c.power("geometry.media_line_bytes", g.media_line_bytes, 4096)?;
        if g.interleave_bytes < g.media_line_bytes {
            return c.wrong(
                "geometry.interleave_bytes",
                g.interleave_bytes,
                "at least geometry.media_line_bytes",
            );
        }
        c.time("read.latency_ns", r.latency_ns)?;
        c.time("read.buffered_latency_ns", r.buffered_latency_ns)?;
        if r.buffered_latency_ns > r.latency_ns {
            return c.wrong(
                "read.buffered_latency_ns",
                r.buffered_latency_ns,
                "at most read.latency_ns",
            );
        }
        c.range("read.buffers", r.buffers, 1, 65_536)?;
        c.power("read.buffer_bytes", r.buffer_bytes, 1 << 20)?;
        if r.buffer_bytes < g.media_line_bytes {
            return c.wrong(
                "read.buffer_bytes",
                r.buffer_bytes,
                "at least geometry.media_line_bytes",
            );
        }
        c.rate("read.media_gbps", r.media_gbps)?;
        c.rate("read.random_media_gbps", r.random_media_gbps)?;
        c.rate("read.interface_gbps", r.interface_gbps)?;
        c.time("write.accept_ns", w.accept_ns)?;
        c.range("write.combining_buffers", w.combining_buffers, 1, 65_536)?;
        c.range("write.queue", w.queue, 1, 65_536)?;
        c.rate("write.media_gbps", w.media_gbps)?;
        self.check_core(&c)
    }

    fn check_core(&self, c: &Check<'_>) -> Result<(), ModelError> {
        let core = &self.is.core;
        for (bytes_field, ways_field, bytes, ways) in [
            ("core.l1_bytes", "core.l1_ways", core.l1_bytes, core.l1_ways),
            ("core.l2_bytes", "core.l2_ways", core.l2_bytes, core.l2_ways),
            ("core.l3_bytes", "core.l3_ways", core.l3_bytes, core.l3_ways),
        ] {
            c.range(ways_field, ways, 1, 64)?;
            c.range(bytes_field, bytes, LINE * ways, 1 << 32)?;
            if !bytes.is_multiple_of(LINE * ways) {
                return c.wrong(bytes_field, bytes, "a multiple of 64 bytes x its ways");
            }
        }
        if core.l2_bytes < core.l1_bytes {
            return c.wrong("core.l2_bytes", core.l2_bytes, "at least core.l1_bytes");
        }
        c.time("core.l2_ns", core.l2_ns)?;
        c.time("core.l3_ns", core.l3_ns)?;
        c.time("core.peer_ns", core.peer_ns)?;
        c.range("core.line_fill_buffers", core.line_fill_buffers, 1, 1024)?;
        c.range("core.store_buffer", core.store_buffer, 1, 4096)?;
        c.range("core.stream_lines", core.stream_lines, 0, 64)?;
        c.time("core.access_ns", core.access_ns)?;
        c.time("core.operation_ns", core.operation_ns)?;
        c.time("core.locked_ns", core.locked_ns)?;
        c.time("core.flush_ns", core.flush_ns)?;
        c.time("core.fence_ns", core.fence_ns)?;
        // This is the only time that may be 0.
        match core.store_fence_ns {
            0.0 => Ok(()),
            ns => c.time("core.store_fence_ns", ns),
        }
    }
}

/// Checks the fields of one file.
struct Check<'a>(&'a str);

impl Check<'_> {
    fn wrong(
        &self,
        field: &'static str,
        value: impl std::fmt::Display,
        may_be: impl Into<String>,
    ) -> Result<(), ModelError> {
        Err(ModelError::Field {
            file: self.0.into(),
            field,
            value: value.to_string(),
            may_be: may_be.into(),
        })
    }

    fn range(
        &self,
        field: &'static str,
        value: u64,
        least: u64,
        most: u64,
    ) -> Result<(), ModelError> {
        if (least..=most).contains(&value) {
            return Ok(());
        }
        self.wrong(field, value, format!("from {least} to {most}"))
    }

    fn power(&self, field: &'static str, value: u64, most: u64) -> Result<(), ModelError> {
        if value.is_power_of_two() && (LINE..=most).contains(&value) {
            return Ok(());
        }
        self.wrong(
            field,
            value,
            format!("a power of two from {LINE} to {most}"),
        )
    }

    /// Checks a time: above 0 and at most a second. Refuses NaN too.
    fn time(&self, field: &'static str, ns: f64) -> Result<(), ModelError> {
        if ns > 0.0 && ns <= 1e9 {
            return Ok(());
        }
        self.wrong(field, ns, "above 0 and at most 1e9 (nanoseconds)")
    }

    /// Checks a rate: a thousandth to a million GB/s. Refuses NaN too.
    fn rate(&self, field: &'static str, gbps: f64) -> Result<(), ModelError> {
        if (1e-3..=1e6).contains(&gbps) {
            return Ok(());
        }
        self.wrong(field, gbps, "from 0.001 to 1e6 (10^9 bytes a second)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTANE: &str = include_str!("../../devices/optane.toml");

    #[test]
    fn every_shipped_device_loads_under_its_name() {
        for name in Device::shipped() {
            let device = Device::load(name).unwrap();
            assert_eq!(device.name(), *name);
            assert!(!device.summary().is_empty());
        }
        assert_eq!(Device::shipped().len(), 6);
        let optane = Device::load("optane").unwrap();
        assert_eq!(optane.is.geometry.media_line_bytes, 256);
        assert_eq!(*optane.core(), Core::default());
    }

    #[test]
    fn a_users_own_file_is_read_and_what_is_no_device_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mine.toml");
        let text = OPTANE.replace("\"optane\"", "\"mine\"") + "[core]\nl3_bytes = 4194304\n";
        std::fs::write(&path, text).unwrap();
        let device = Device::load(path.to_str().unwrap()).unwrap();
        assert_eq!(device.name(), "mine");
        assert_eq!(device.core().l3_bytes, 4 << 20);
        assert_eq!(device.core().l2_bytes, 1 << 20, "the rest as ever");
        let missing = Device::load("./no-such.toml").unwrap_err().to_string();
        assert!(missing.contains("./no-such.toml"), "{missing}");
        let unknown = Device::load("optan").unwrap_err().to_string();
        assert!(unknown.contains("\"optan\""), "{unknown}");
        assert!(unknown.contains("optane, stt-ram"), "{unknown}");
    }

    /// A wrong field: its name, its line in Optane's description, a wrong line, and the value to
    /// name.
    type Wrong = (&'static str, &'static str, &'static str, &'static str);

    /// Each of the wrong lines in place of the right one is refused, with the file, the field and
    /// the value in the message.
    fn refused(cases: &[Wrong]) {
        for (field, right, wrong, shown) in cases {
            assert!(OPTANE.contains(right), "{right}");
            let error = Device::parse("dev.toml", &OPTANE.replace(right, wrong)).unwrap_err();
            assert!(
                matches!(&error, ModelError::Field { field: found, .. } if found == field),
                "{field}: {error:?}"
            );
            let message = error.to_string();
            let named = format!("dev.toml: {field} cannot be ");
            assert!(message.starts_with(&named), "{message}");
            assert!(message[named.len()..].contains(shown), "{message}");
        }
    }

    #[test]
    fn every_bad_field_of_the_geometry_is_named() {
        refused(&[
            ("name", "name = \"optane\"", "name = \"o p\"", "o p"),
            ("name", "name = \"optane\"", "name = \"\"", "\"\""),
            ("geometry.modules", "modules = 6", "modules = 0", "0"),
            ("geometry.modules", "modules = 6", "modules = 65", "65"),
            (
                "geometry.media_line_bytes",
                "media_line_bytes = 256",
                "media_line_bytes = 255",
                "255",
            ),
            (
                "geometry.media_line_bytes",
                "media_line_bytes = 256",
                "media_line_bytes = 32",
                "32",
            ),
            (
                "geometry.interleave_bytes",
                "interleave_bytes = 4096",
                "interleave_bytes = 128",
                "128",
            ),
        ]);
    }

    #[test]
    fn every_bad_field_of_reading_is_named() {
        refused(&[
            (
                "read.latency_ns",
                "latency_ns = 305.0",
                "latency_ns = 0.0",
                "0",
            ),
            (
                "read.latency_ns",
                "latency_ns = 305.0",
                "latency_ns = nan",
                "NaN",
            ),
            (
                "read.latency_ns",
                "latency_ns = 305.0",
                "latency_ns = inf",
                "inf",
            ),
            (
                "read.buffered_latency_ns",
                "latency_ns = 305.0",
                "latency_ns = 100.0",
                "123.7",
            ),
            ("read.buffers", "\nbuffers = 64", "\nbuffers = 0", "0"),
            (
                "read.buffer_bytes",
                "buffer_bytes = 256",
                "buffer_bytes = 64",
                "64",
            ),
            (
                "read.random_media_gbps",
                "random_media_gbps = 41.2",
                "random_media_gbps = -1.0",
                "-1",
            ),
            (
                "read.interface_gbps",
                "interface_gbps = 128.0",
                "interface_gbps = 0.0",
                "0",
            ),
        ]);
    }

    #[test]
    fn every_bad_field_of_writing_is_named() {
        refused(&[
            (
                "write.accept_ns",
                "accept_ns = 61.0",
                "accept_ns = -60.0",
                "-60",
            ),
            (
                "write.combining_buffers",
                "combining_buffers = 64",
                "combining_buffers = 0",
                "0",
            ),
            ("write.queue", "queue = 8", "queue = 0", "0"),
            (
                "write.media_gbps",
                "media_gbps = 11.4",
                "media_gbps = nan",
                "NaN",
            ),
        ]);
    }

    #[test]
    fn every_bad_field_of_the_core_is_named() {
        for (line, field) in [
            ("l1_bytes = 1000", "core.l1_bytes"),
            ("l1_ways = 0", "core.l1_ways"),
            ("l2_bytes = 16384", "core.l2_bytes"),
            ("l2_ways = 65", "core.l2_ways"),
            ("l2_ns = 0.0", "core.l2_ns"),
            ("l3_bytes = 0", "core.l3_bytes"),
            ("l3_ns = nan", "core.l3_ns"),
            ("peer_ns = -1.0", "core.peer_ns"),
            ("line_fill_buffers = 0", "core.line_fill_buffers"),
            ("store_buffer = 0", "core.store_buffer"),
            ("stream_lines = 65", "core.stream_lines"),
            ("access_ns = 0.0", "core.access_ns"),
            ("operation_ns = inf", "core.operation_ns"),
            ("locked_ns = 0.0", "core.locked_ns"),
            ("flush_ns = 0.0", "core.flush_ns"),
            ("fence_ns = -0.0", "core.fence_ns"),
        ] {
            let error = Device::parse("dev.toml", &format!("{OPTANE}[core]\n{line}\n"))
                .expect_err(line)
                .to_string();
            assert!(error.starts_with(&format!("dev.toml: {field} ")), "{error}");
        }
        let optane = Device::load("optane").unwrap();
        let small = optane.with_core(|core| core.l3_bytes = 2 << 20).unwrap();
        assert_eq!(small.core().l3_bytes, 2 << 20);
        let error = optane.with_core(|core| core.l3_ways = 0).unwrap_err();
        assert!(
            error.to_string().contains("core.l3_ways cannot be 0"),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_description_is_refused_with_its_line() {
        for (text, said) in [
            (OPTANE.replace("queue = 8", "queues = 8"), "queues"),
            (OPTANE.replace("queue = 8\n", ""), "queue"),
            (OPTANE.replace("queue = 8", "queue = -8"), "-8"),
            (OPTANE.replace("queue = 8", "queue = \"8\""), "queue"),
            (OPTANE.replace("queue = 8", "queue = "), "queue ="),
            (format!("{OPTANE}[cpu]\ncores = 2\n"), "cpu"),
            (format!("{OPTANE}[core]\nl4_bytes = 2\n"), "l4_bytes"),
        ] {
            let error = Device::parse("dev.toml", &text).unwrap_err().to_string();
            assert!(error.starts_with("dev.toml: "), "{error}");
            assert!(error.contains(said), "{said}: {error}");
        }
    }
}
