//! Printing records in key order, streamed.

use crate::args::{ScanArgs, ScanFormat};
use crate::failure::{Failure, Outcome};
use crate::records::{Range, Records, Shown};
use crate::rows;
use crate::text::escape_into;
use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;

/// Prints a range of records.
///
/// # Errors
/// A record is damaged (those before it are printed), or standard output cannot be written to.
pub fn print(records: &dyn Records, args: &ScanArgs) -> Outcome {
    let bytes = |arg: &Option<OsString>| arg.as_ref().map(|a| a.as_bytes().to_vec());
    let (from, to, prefix) = (bytes(&args.from), bytes(&args.to), bytes(&args.prefix));
    let range = Range::new(from.as_deref(), to.as_deref(), prefix.as_deref());
    let mut printer = Printer::new(args, records.typed()).map_err(|e| Failure::output(&e))?;
    let scanned = if range.is_empty() {
        Ok(())
    } else {
        records.scan(&range, args.reverse, &mut |key, shown| {
            printer.put(key, shown)
        })
    };
    printer.end().map_err(|e| Failure::output(&e))?;
    scanned
}

/// Prints records until there are enough.
struct Printer {
    out: BufWriter<io::StdoutLock<'static>>,
    format: ScanFormat,
    typed: bool,
    left: u64,
    line: String,
    result: io::Result<()>,
}

impl Printer {
    fn new(args: &ScanArgs, typed: bool) -> io::Result<Self> {
        let mut out = BufWriter::with_capacity(64 << 10, io::stdout().lock());
        if args.format == ScanFormat::Csv {
            let header: &[u8] = if typed {
                b"key,type,value\n"
            } else {
                b"key,value\n"
            };
            out.write_all(header)?;
        }
        Ok(Self {
            out,
            format: args.format,
            typed,
            left: args.limit.unwrap_or(u64::MAX),
            line: String::new(),
            result: Ok(()),
        })
    }

    fn put(&mut self, key: &[u8], shown: &Shown<'_>) -> ControlFlow<()> {
        if self.left == 0 {
            return ControlFlow::Break(());
        }
        self.left -= 1;
        match self.write(key, shown) {
            Ok(()) if self.left > 0 => ControlFlow::Continue(()),
            Ok(()) => ControlFlow::Break(()),
            Err(e) => {
                self.result = Err(e);
                ControlFlow::Break(())
            }
        }
    }

    fn write(&mut self, key: &[u8], shown: &Shown<'_>) -> io::Result<()> {
        let line = &mut self.line;
        line.clear();
        let value = shown.value.unwrap_or_default();
        match (self.format, self.typed) {
            (ScanFormat::Text, _) => {
                escape_into(key, line);
                if let Some(kind) = shown.kind {
                    line.push('\t');
                    line.push_str(kind);
                }
                line.push('\t');
                escape_into(value, line);
            }
            (ScanFormat::Json, false) => rows::json::push_pair(key, value, line),
            (ScanFormat::Json, true) => rows::json::push_shown(key, shown, line),
            (ScanFormat::Csv, false) => {
                return rows::csv::write_record(&mut self.out, &[key, value]);
            }
            (ScanFormat::Csv, true) => {
                let kind = shown.kind.unwrap_or_default().as_bytes();
                return rows::csv::write_record(&mut self.out, &[key, kind, value]);
            }
        }
        line.push('\n');
        self.out.write_all(line.as_bytes())
    }

    fn end(mut self) -> io::Result<()> {
        self.result?;
        self.out.flush()
    }
}
