//! `upgrade`: a database with formats of older versions, written anew with those of this build.
//!
//! | file | is |
//! | --- | --- |
//! | `POOL.upgrading` and its journal | the new form, while it is being made |
//! | `POOL.before-upgrade` | the rollback copy: the old file under another name |
//!
//! # Crash states
//! 1. A database that was not closed in order is opened and closed: its journal has nothing any
//!    more that its file lacks. A crash leaves it as any opening does.
//! 2. The new form is made, closed, read back and compared. A crash leaves a file that the next run
//!    removes.
//! 3. The old file gets its second name. After a crash the next run finds that both are one file.
//! 4. Its journal is removed, without which it is complete. If only that was of an older version, a
//!    crash leaves nothing to do: the next run removes the new form and the second name.
//! 5. The new file takes the name of the database. A journal that a power cut has brought back is
//!    no harm to either: it has nothing that the old file lacks, and the next opening of the new
//!    one makes it its own.
//!
//! The old database stays open for reading until 5, so nobody can change it meanwhile. Opening the
//! new one makes a journal for it, so nothing is removed afterwards. A lock on the folder keeps a
//! second run out, which would take the first one's work for what a crash left; what there is to do
//! is decided under it.

use crate::args::Upgrade;
use crate::database::{self, READ, ROOT};
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::pool::{How, about};
use bristlecone_command::text::{bytes, duration, grouped, program, shell_path};
use bristlecone_command::{print_report, progress};
use bristlecone_index::{TreeError, clustered};
use bristlecone_pmem::media::journal::{self, journal_path};
use bristlecone_pmem::media::{Auto, Durability, MediumKind};
use bristlecone_pmem::pool::{self, Pool};
use bristlecone_pmem::{Access, OpenError, VersionError};
use bristlecone_server::data::spaces;
use bristlecone_store::{
    BackupError, BackupReport, STORE_FORMAT, Snapshot, Store, StoreError, StoreOptions, WallClock,
};
use serde::Serialize;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter};
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that a new pool has beyond its content.
const ROOM: u64 = 8 << 20;
/// The most that a journal has.
const JOURNAL: u64 = 256 << 20;

/// A format that the database has.
#[derive(Debug, Serialize)]
struct Format {
    format: &'static str,
    found: u64,
    /// The version that this build writes.
    current: u64,
}

/// The outcome, for scripts.
#[derive(Debug, Serialize)]
struct Summary {
    pool: String,
    formats: Vec<Format>,
    needed: bool,
    upgraded: bool,
    /// The rollback copy, made or to be made.
    kept: Option<String>,
    keyspaces: Option<u64>,
    entries: Option<u64>,
    room_needed: Option<u64>,
    room: Option<u64>,
    seconds: f64,
}

/// Brings a database to the formats of this build.
pub fn run(args: &Upgrade) -> Outcome {
    let started = Instant::now();
    let given = &args.pool;
    // The new file goes beside the old one, not beside a link to it.
    let path = &match fs::canonicalize(given) {
        Ok(path) if given.is_symlink() => path,
        _ => given.clone(),
    };
    let old = open(path)?;
    database::expect(&old, path)?;
    let formats = formats(&old, path)?;
    let mut summary = Summary {
        pool: given.display().to_string(),
        needed: is_needed(&formats),
        formats,
        upgraded: false,
        kept: None,
        keyspaces: None,
        entries: None,
        room_needed: None,
        room: None,
        seconds: 0.0,
    };
    let found = list(&summary.formats);
    if !summary.needed {
        let mut text = format!(
            "{}: {found}: what this bristlecone writes; nothing to do",
            given.display()
        );
        if !args.dry_run {
            for left in clear(args, path)? {
                text += &format!(
                    "\nremoved {}, which an upgrade that was cut short had left",
                    left.display()
                );
            }
        }
        summary.seconds = started.elapsed().as_secs_f64();
        return print_report(&text, &summary, args.json);
    }
    let plan = Plan::new(args, path, &old)?;
    summary.kept = Some(plan.keep.display().to_string());
    summary.room_needed = Some(plan.room_needed);
    summary.room = Some(plan.room);
    if args.dry_run {
        summary.seconds = started.elapsed().as_secs_f64();
        let text = format!(
            "{}: {found}\nwould be written anew, for which about {} are needed and {} are there; the old file would be {}\nnothing was changed",
            given.display(),
            bytes(plan.room_needed),
            bytes(plan.room),
            plan.keep.display(),
        );
        return print_report(&text, &summary, args.json);
    }
    plan.check_room()?;
    drop(old);
    let report = plan.carry_out()?;
    summary.upgraded = true;
    (summary.keyspaces, summary.entries) = (Some(report.keyspaces), Some(report.entries));
    summary.seconds = started.elapsed().as_secs_f64();
    let text = told(&plan, &found, &report, started.elapsed());
    print_report(&text, &summary, args.json)
}

/// What was done, in words.
fn told(plan: &Plan, found: &str, report: &BackupReport, took: Duration) -> String {
    let [path, journal] =
        [&plan.path, &journal_path(&plan.path)].map(|path| shell_path(path).to_string());
    let keep = shell_path(&plan.keep);
    format!(
        "upgraded {}: {found}: {} entries in {} keyspaces, written anew and compared, in {}\n{keep} is the old file: remove it when \
         all is well; back to it: rm -f {journal} && mv {keep} {path}\nan archive has to begin again, in another directory\n{} check \
         {path}    # to be sure",
        plan.path.display(),
        grouped(report.entries),
        report.keyspaces,
        duration(took),
        program(),
    )
}

fn is_needed(formats: &[Format]) -> bool {
    formats.iter().any(|format| format.found < format.current)
}

/// The formats in words.
fn list(formats: &[Format]) -> String {
    let each = formats.iter().map(|format| {
        let Format {
            format,
            found,
            current,
        } = format;
        if found == current {
            format!("{format} {found}")
        } else {
            format!("{format} {found} (now {current})")
        }
    });
    format!("formats {}", each.collect::<Vec<_>>().join(", "))
}

/// Opens the database's file for reading.
fn open(path: &Path) -> Outcome<Arc<Pool<Auto>>> {
    if !READ.reads_only(path) {
        return Err(about(
            path,
            &"a device, beside which nothing can be made: `restore` a server's backup or an archive onto it",
        ));
    }
    Pool::open(path, &READ.options(Access::ReadOnly)).map_err(|e| match &e {
        OpenError::Version { path, version } => other_version(path, version),
        _ => Failure::new(e.to_string()),
    })
}

/// The error of a version that this build does not read.
fn other_version(path: &Path, version: &VersionError) -> Failure {
    let VersionError {
        format,
        found,
        newest,
        ..
    } = version;
    let path = path.display();
    Failure::Version(if version.is_newer() {
        format!("{path}: {version}")
    } else {
        format!(
            "{path}: made by an older bristlecone: it has {format} format version {found}, which this one, with {newest}, does not \
             read: let the release that made it write its content out, by `export` or by a server's SAVE, and `import` or `restore` \
             that here"
        )
    })
}

/// Opens the store of a pool, with a clock by which nothing has expired.
fn open_store(pool: &Arc<Pool<Auto>>, path: &Path) -> Outcome<Store<Auto>> {
    Store::open(pool, ROOT, &options()).map_err(|e| match (e.version(), &e) {
        (Some(version), _) => other_version(path, version),
        (None, StoreError::Damaged(_) | StoreError::Index(TreeError::Corrupt(_))) => about(
            path,
            &format_args!(
                "{e}\n`{} repair {} NEW` makes a database of all that is whole in it",
                program(),
                shell_path(path)
            ),
        ),
        _ => about(path, &e),
    })
}

fn options() -> StoreOptions {
    StoreOptions {
        clock: WallClock::new(|| 0),
        ..database::making()
    }
}

/// Returns the formats of a database, with their versions.
fn formats(pool: &Arc<Pool<Auto>>, path: &Path) -> Outcome<Vec<Format>> {
    let info = pool.info();
    let mut all = vec![("pool", info.format.into(), pool::FORMAT.into())];
    if let Some(found) = info.media_recovery.journal_format {
        all.push(("journal", found.into(), journal::FORMAT.into()));
    }
    // Opening reads no others.
    let store = open_store(pool, path)?;
    all.push(("tree", clustered::FORMAT, clustered::FORMAT));
    all.push(("store", STORE_FORMAT, STORE_FORMAT));
    let names = store.keyspaces();
    if database::server_bookkeeping(names.iter().map(|keyspace| keyspace.name()))
        && let Some(records) = store.find_keyspace(spaces::ORDER_KEYSPACE)
    {
        let record = store.get(&records, spaces::FORMAT_KEY);
        let record = record.map_err(|e| about(path, &e))?;
        spaces::check_format(record.as_deref()).map_err(|e| other_version(path, &e))?;
        all.push(("server", spaces::FORMAT.into(), spaces::FORMAT.into()));
    }
    let all = all.into_iter().map(|(format, found, current)| Format {
        format,
        found,
        current,
    });
    Ok(all.collect())
}

/// Where the new form is made.
fn new_name(path: &Path) -> PathBuf {
    with_suffix(path, ".upgrading")
}

/// The rollback copy's name.
fn keep_name(args: &Upgrade, path: &Path) -> PathBuf {
    let usual = || with_suffix(path, ".before-upgrade");
    args.keep.clone().unwrap_or_else(usual)
}

/// Keeps other runs out. Dropping it ends that.
fn lock(folder: &Path) -> Outcome<File> {
    let file = File::open(folder).map_err(|e| Failure::io(folder, "opening", &e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(_) => Err(about(
            folder,
            &"another upgrade is working in this folder: wait until it ends",
        )),
    }
}

/// Removes what a run has left that was ended when nothing more was to be done: the new form, and
/// the second name of the file. Returns what there was.
fn clear(args: &Upgrade, path: &Path) -> Outcome<Vec<PathBuf>> {
    let (new, keep) = (new_name(path), keep_name(args, path));
    let own = resolved(path)?;
    let is_second = same_file(path, &keep) && resolved(&keep)? != own;
    let left = [journal_path(&new), new].into_iter();
    let left = left.filter(|file| file.is_file());
    let left: Vec<PathBuf> = left.chain(is_second.then_some(keep)).collect();
    if !left.is_empty() {
        let _lock = lock(parent(path))?;
        left.iter().try_for_each(|file| remove(file))?;
    }
    Ok(left)
}

/// What is to be done.
struct Plan {
    path: PathBuf,
    keep: PathBuf,
    /// The new form, while it is being made.
    new: PathBuf,
    /// Bytes that the new form takes at most, nearly.
    room_needed: u64,
    /// Bytes that the disk has.
    room: u64,
    /// Locked.
    _folder: File,
}

impl Plan {
    /// Looks whether nothing stands in the way.
    fn new(args: &Upgrade, path: &Path, old: &Pool<Auto>) -> Outcome<Self> {
        let [own, index] = [ROOT.to_owned(), format!("{ROOT}.index")];
        let roots = old.roots().into_iter();
        let mut others = roots.filter(|root| root.name != own && root.name != index);
        if let Some(other) = others.next() {
            return Err(about(
                path,
                &format_args!(
                    "holds root {:?} besides its database, which only the program that made it can write anew",
                    other.name
                ),
            ));
        }
        let folder = parent(path);
        let (new, keep) = (new_name(path), keep_name(args, path));
        if keep.file_name().is_none() {
            return Err(usage(&keep, "no name of a file"));
        }
        let kept = resolved(&keep)?;
        let kept = [&kept, &journal_path(&kept)];
        for own in [resolved(path)?, resolved(&new)?] {
            if kept.contains(&&own) || kept.contains(&&journal_path(&own)) {
                return Err(usage(
                    &keep,
                    "in use by the upgrade itself: name another file for the old one",
                ));
            }
        }
        for file in [&keep, &journal_path(&keep)] {
            if fs::symlink_metadata(file).is_ok() && !same_file(path, file) {
                return Err(about(
                    file,
                    &"there already; it was left alone: remove it, or name another file for the old one with --keep",
                ));
            }
        }
        let device = |path: &Path| {
            let meta = fs::metadata(path).map_err(|e| Failure::io(path, "looking at it", &e))?;
            Ok::<_, Failure>(meta.dev())
        };
        if device(parent(&keep))? != device(path)? {
            return Err(usage(
                &keep,
                "on another file system, where the old file cannot have a second name: name one beside it",
            ));
        }
        let locked = lock(folder)?;
        let info = old.info();
        let journal = match info.medium {
            MediumKind::Journal => JOURNAL.min(info.used_bytes / 4),
            _ => 0,
        };
        let there = rustix::fs::statvfs(folder)
            .map_err(|e| Failure::io(folder, "looking for room", &e.into()))?;
        // What an earlier run has left makes room.
        let left = [&new, &journal_path(&new)]
            .map(|path| fs::metadata(path).map_or(0, |m| m.blocks() * 512));
        Ok(Self {
            path: path.to_path_buf(),
            keep,
            new,
            room_needed: info.used_bytes + journal + ROOM,
            room: there.f_bavail * there.f_frsize + left.iter().sum::<u64>(),
            _folder: locked,
        })
    }

    fn check_room(&self) -> Outcome {
        if self.room >= self.room_needed {
            return Ok(());
        }
        Err(about(
            &self.path,
            &format_args!(
                "the new form needs about {} beside the old one, and the disk has {}: make room first; nothing was changed",
                bytes(self.room_needed),
                bytes(self.room)
            ),
        ))
    }

    /// Makes the new form and puts it in the place of the old one.
    fn carry_out(&self) -> Outcome<BackupReport> {
        let path = &self.path;
        // Before the lock was had, another run may have come to its end.
        let old = open(path)?;
        if !is_needed(&formats(&old, path)?) {
            return Err(about(path, &"upgraded meanwhile: nothing is left to do"));
        }
        let old = in_order(path, old)?;
        remove(&self.new)?;
        remove(&journal_path(&self.new))?;
        let how = How {
            durability: Durability::None,
            ..How::durable(Some(old.info().medium))
        };
        let (pool, unfinished) = database::new_pool(&self.new, how)?;
        let from = open_store(&old, path)?;
        let snapshot = from.snapshot();
        let report = self.copy(&snapshot, pool)?;
        // It is complete, and closed in order: its journal has nothing that it lacks.
        remove(&journal_path(&self.new))?;
        self.verify(&snapshot)?;
        self.keep_owner()?;
        let file = File::open(&self.new).and_then(|file| file.sync_all());
        file.map_err(|e| Failure::io(&self.new, "syncing", &e))?;
        self.exchange()?;
        unfinished.keep();
        Ok(report)
    }

    /// Writes what a snapshot sees to a new pool, and closes that.
    fn copy(&self, from: &Snapshot<Auto>, pool: Arc<Pool<Auto>>) -> Outcome<BackupReport> {
        let (reader, writer) =
            io::pipe().map_err(|e| Failure::io(&self.new, "making a pipe", &e))?;
        let bar = progress::file("writing the new form", from.pool().info().used_bytes);
        let (read, restored) = std::thread::scope(|threads| {
            let reading =
                threads.spawn(|| from.backup(&mut BufWriter::with_capacity(256 << 10, writer)));
            let mut stream = BufReader::with_capacity(256 << 10, bar.wrap_read(reader));
            let restored = Store::restore(&pool, ROOT, &options(), &mut stream);
            // So that the other end does not wait for ever.
            drop(stream);
            (reading.join(), restored)
        });
        bar.finish_and_clear();
        match read {
            // The other end has failed.
            Ok(Err(BackupError::Io(_))) | Ok(Ok(_)) => {}
            Ok(Err(e)) => return Err(about(&self.path, &e)),
            Err(_) => return Err(about(&self.path, &"reading it panicked")),
        }
        let (store, report) = restored.map_err(|e| about(&self.new, &e))?;
        store
            .close()
            .map_err(|(_, e)| about(&self.new, &format_args!("closing: {e}")))?;
        Ok(report)
    }

    /// Reads the new form as the file has it, and compares it with the old one.
    fn verify(&self, old: &Snapshot<Auto>) -> Outcome {
        let pool = Pool::open(&self.new, &READ.options(Access::ReadOnly))
            .map_err(|e| Failure::new(e.to_string()))?;
        if !pool.info().was_clean {
            return Err(about(&self.new, &"closing it was not durable"));
        }
        let store = open_store(&pool, &self.new)?;
        let compared = progress::waiting("comparing", || {
            store.check().map_err(|e| e.to_string())?;
            compare(old, &store.snapshot())
        });
        compared.map_err(|e| {
            about(
                &self.path,
                &format_args!("the new form is not what it should be: {e}; nothing was changed"),
            )
        })
    }

    /// Gives the new file the owner and the rights of the old one.
    fn keep_owner(&self) -> Outcome {
        let given = || -> io::Result<()> {
            let [old, new] = [fs::metadata(&self.path)?, fs::metadata(&self.new)?];
            if (old.uid(), old.gid()) != (new.uid(), new.gid()) {
                chown(&self.new, Some(old.uid()), Some(old.gid()))?;
            }
            fs::set_permissions(&self.new, old.permissions())
        };
        given().map_err(|e| Failure::io(&self.new, "giving it the owner of the old file", &e))
    }

    /// Puts the new file in the place of the old one, which keeps another name.
    fn exchange(&self) -> Outcome {
        let (path, keep) = (&self.path, &self.keep);
        if !same_file(path, keep) {
            fs::hard_link(path, keep)
                .map_err(|e| Failure::io(keep, "giving the old file this name too", &e))?;
        }
        sync(parent(keep))?;
        remove(&journal_path(path))?;
        fs::rename(&self.new, path).map_err(|e| Failure::io(path, "replacing it", &e))?;
        sync(parent(path))
    }
}

/// Sees to it that a database, which is open for reading, is complete without its journal, and
/// returns it.
fn in_order(path: &Path, old: Arc<Pool<Auto>>) -> Outcome<Arc<Pool<Auto>>> {
    let is_complete = |pool: &Pool<Auto>| {
        let info = pool.info();
        // The journal may have the end of the closing.
        info.was_clean && info.media_recovery.batches_replayed == 0
    };
    if is_complete(&old) {
        return Ok(old);
    }
    drop(old);
    let how = How::durable(None).options(Access::ReadWrite);
    drop(Pool::<Auto>::open(path, &how).map_err(|e| Failure::new(e.to_string()))?);
    let old = open(path)?;
    if is_complete(&old) {
        return Ok(old);
    }
    Err(about(
        path,
        &"closing it was not durable, or another process has opened it",
    ))
}

/// Removes a file, which need not be there.
fn remove(path: &Path) -> Outcome {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Failure::io(path, "removing", &e)),
        _ => Ok(()),
    }
}

/// Compares what two snapshots see.
///
/// # Errors
/// What is different.
fn compare(old: &Snapshot<Auto>, new: &Snapshot<Auto>) -> Result<(), String> {
    let names = |snapshot: &Snapshot<Auto>| snapshot.keyspaces().map_err(|e| e.to_string());
    let (of_old, of_new) = (names(old)?, names(new)?);
    if of_old.len() != of_new.len() {
        return Err(format!("{} keyspaces for {}", of_new.len(), of_old.len()));
    }
    for (from, to) in of_old.iter().zip(&of_new) {
        if from.name() != to.name() {
            return Err(format!("keyspace {:?} for {:?}", to.name(), from.name()));
        }
        let (mut wrong, mut entries) = (None, 0);
        old.scan::<&[u8]>(from, .., |key, entry| {
            entries += 1;
            let is_same = |found: bristlecone_store::Entry<'_>| {
                found.value == entry.value && found.expires_at == entry.expires_at
            };
            match new.get_with(to, key, is_same) {
                Ok(Some(true)) => return ControlFlow::Continue(()),
                Ok(_) => wrong = Some(format!("key \"{}\" differs", key.escape_ascii())),
                Err(e) => wrong = Some(e.to_string()),
            }
            ControlFlow::Break(())
        })
        .map_err(|e| e.to_string())?;
        let count = new.count::<&[u8]>(to, ..).map_err(|e| e.to_string())?;
        if wrong.is_none() && count != entries {
            wrong = Some(format!("{count} entries for {entries}"));
        }
        if let Some(wrong) = wrong {
            return Err(format!("keyspace {:?}: {wrong}", from.name()));
        }
    }
    Ok(())
}

fn usage(path: &Path, what: &str) -> Failure {
    Failure::Usage(format!("{}: {what}", path.display()))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(OsStr::new(suffix));
    name.into()
}

/// The folder of a file.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// A path without links and dots; the file need not be there.
fn resolved(path: &Path) -> Outcome<PathBuf> {
    let folder = parent(path);
    let found = fs::canonicalize(folder).map_err(|e| Failure::io(folder, "looking at it", &e))?;
    Ok(found.join(path.file_name().unwrap_or_default()))
}

/// Whether two names are of one file.
fn same_file(a: &Path, b: &Path) -> bool {
    let id = |path| fs::symlink_metadata(path).map(|meta| (meta.dev(), meta.ino()));
    matches!((id(a), id(b)), (Ok(a), Ok(b)) if a == b)
}

/// Makes the names in a folder durable.
fn sync(folder: &Path) -> Outcome {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|e| Failure::io(folder, "syncing", &e))
}
