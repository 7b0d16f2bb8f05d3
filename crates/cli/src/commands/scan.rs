//! `scan`: keys and values in order, streamed.

use crate::args::{Scan, ScanFormat};
use crate::failure::{Failure, Outcome};
use crate::keyspaces::{self, Form, Shown};
use crate::rows;
use crate::store::{Contents, How, Range, Store, open_pool};
use crate::text::{escape_into, quoted};
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;

/// Prints a range.
pub fn run(args: &Scan) -> Outcome {
    let bytes = |arg: &Option<std::ffi::OsString>| arg.as_ref().map(|a| a.as_bytes().to_vec());
    let (from, to, prefix) = (bytes(&args.from), bytes(&args.to), bytes(&args.prefix));
    let range = Range::new(from.as_deref(), to.as_deref(), prefix.as_deref());
    let pool = open_pool(&args.pool, How::read(args.medium))?;
    let contents = Contents::of(&pool);
    let asked = args.keyspace.as_deref();
    let Some(name) = keyspaces::source(&contents, &args.pool, asked)? else {
        let store = Store::open_in(&pool, &args.pool)?;
        return print_index(&store, &range, args).map_err(|e| Failure::output(&e));
    };
    let store = keyspaces::open(&pool, &args.pool, name)?;
    let there: Vec<String> = store
        .keyspaces()
        .iter()
        .map(|k| k.name().to_owned())
        .collect();
    let (keyspace, form) = keyspaces::keyspace(&args.pool, asked, &there)?;
    let Some(keyspace) = store.find_keyspace(keyspace) else {
        return Ok(());
    };
    let (snapshot, now) = (store.snapshot(), store.now());
    let mut printer = Printer::new(args, form).map_err(|e| Failure::output(&e))?;
    let mut strange = None;
    let mut visit = |key: &[u8], entry: bristlecone_store::Entry<'_>| match form.show(&entry, now) {
        Ok(Some(shown)) => printer.put(key, &shown),
        Ok(None) => ControlFlow::Continue(()),
        Err(e) => {
            strange = Some(format!("key {}: {e}", quoted(key)));
            ControlFlow::Break(())
        }
    };
    let scanned = if range.is_empty() {
        Ok(())
    } else if args.reverse {
        snapshot.scan_reverse(&keyspace, range.owned(), &mut visit)
    } else {
        snapshot.scan(&keyspace, range.owned(), &mut visit)
    };
    printer.end().map_err(|e| Failure::output(&e))?;
    let failed = scanned.err().map(|e| e.to_string()).or(strange);
    match failed {
        None => Ok(()),
        Some(what) => Err(keyspaces::of(&args.pool, name, &what)),
    }
}

fn print_index(store: &Store, range: &Range, args: &Scan) -> io::Result<()> {
    let mut printer = Printer::new(args, Form::Bytes)?;
    store.scan(range, args.reverse, |key, value| {
        let shown = Shown {
            kind: None,
            value: Some(value),
            expires_at: None,
        };
        printer.put(key, &shown)
    });
    printer.end()
}

/// Prints keys until there are enough.
struct Printer {
    out: BufWriter<io::StdoutLock<'static>>,
    format: ScanFormat,
    form: Form,
    left: u64,
    line: String,
    result: io::Result<()>,
}

impl Printer {
    fn new(args: &Scan, form: Form) -> io::Result<Self> {
        let mut out = BufWriter::with_capacity(64 << 10, io::stdout().lock());
        if args.format == ScanFormat::Csv {
            out.write_all(match form {
                Form::Bytes => b"key,value\n",
                Form::Server => b"key,type,value\n",
            })?;
        }
        Ok(Self {
            out,
            format: args.format,
            form,
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
        match (self.format, self.form) {
            (ScanFormat::Text, _) => {
                escape_into(key, line);
                if let Some(kind) = shown.kind {
                    line.push('\t');
                    line.push_str(kind);
                }
                line.push('\t');
                escape_into(value, line);
            }
            (ScanFormat::Json, Form::Bytes) => rows::json::push_pair(key, value, line),
            (ScanFormat::Json, Form::Server) => rows::json::push_shown(key, shown, line),
            (ScanFormat::Csv, Form::Bytes) => {
                return rows::csv::write_record(&mut self.out, &[key, value]);
            }
            (ScanFormat::Csv, Form::Server) => {
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
