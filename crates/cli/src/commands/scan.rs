//! `scan`: keys and values in order, streamed.

use crate::args::{Scan, ScanFormat};
use crate::failure::{Failure, Outcome};
use crate::rows;
use crate::store::{How, Range, Store};
use crate::text::escape_into;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;

/// Prints a range.
pub fn run(args: &Scan) -> Outcome {
    let bytes = |arg: &Option<std::ffi::OsString>| arg.as_ref().map(|a| a.as_bytes().to_vec());
    let (from, to, prefix) = (bytes(&args.from), bytes(&args.to), bytes(&args.prefix));
    let range = Range::new(from.as_deref(), to.as_deref(), prefix.as_deref());
    let store = Store::open(&args.pool, How::read(args.medium))?;
    let out = BufWriter::with_capacity(64 << 10, io::stdout().lock());
    print(&store, &range, args, out).map_err(|e| Failure::output(&e))
}

fn print(store: &Store, range: &Range, args: &Scan, mut out: impl Write) -> io::Result<()> {
    if args.format == ScanFormat::Csv {
        out.write_all(b"key,value\n")?;
    }
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut result = Ok(());
    let mut line = String::new();
    store.scan(range, args.reverse, |key, value| {
        if left == 0 {
            return ControlFlow::Break(());
        }
        left -= 1;
        let written = match args.format {
            ScanFormat::Text => {
                line.clear();
                escape_into(key, &mut line);
                line.push('\t');
                escape_into(value, &mut line);
                line.push('\n');
                out.write_all(line.as_bytes())
            }
            ScanFormat::Json => {
                line.clear();
                rows::json::push_pair(key, value, &mut line);
                line.push('\n');
                out.write_all(line.as_bytes())
            }
            ScanFormat::Csv => rows::csv::write_record(&mut out, &[key, value]),
        };
        match written {
            Ok(()) if left > 0 => ControlFlow::Continue(()),
            Ok(()) => ControlFlow::Break(()),
            Err(e) => {
                result = Err(e);
                ControlFlow::Break(())
            }
        }
    });
    result?;
    out.flush()
}
