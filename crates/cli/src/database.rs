//! Opening databases, and choosing the keyspace that a command works on.
//!
//! | keyspace | values | written by |
//! | --- | --- | --- |
//! | `0` to `15` | a server's: strings, and collections of which only the type is shown | the server's own commands, executed here |
//! | `elements`, `expiries`, `garbage`, `databases` in a server's database | the server's bookkeeping | nothing but the server |
//! | `memcached`, `memcached-state` in a server's database | items of memcached clients | nothing but the server |
//! | any other | bytes | the library |
//!
//! A command that names no keyspace works on `default` if it is there, else on a server's database
//! 0, else on the only keyspace there is.

use bristlecone::{Database, Durability, ErrorKind, Keyspace, Options};
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::pool::{How, about, files_of, open_pool};
use bristlecone_command::records::Shown;
use bristlecone_command::scratch::Unfinished;
use bristlecone_command::signals::remove_temporary_files_on_signals;
use bristlecone_command::text::{program, quoted, shell_path};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::pool::Pool;
use bristlecone_pmem::{Access, MediumKind, OpenError};
use bristlecone_server::data::record::{Value, string_of};
use bristlecone_server::data::spaces::{
    DATABASES, FORMAT_KEY, ORDER_KEY, ORDER_KEYSPACE, check_format, keyspace_of,
};
use bristlecone_server::items::KEYSPACES;
use bristlecone_store::{Entry, NAMELESS, StoreOptions};
use std::path::Path;
use std::sync::Arc;

/// Root of the pool that a database is in.
pub const ROOT: &str = "store";

/// Root of the pool that a bare index is in.
const BARE_INDEX: &str = "main";

/// How to look at a pool.
pub const READ: How = How {
    medium: None,
    durability: Durability::Immediate,
    read_only: true,
};

/// Bytes of memory that the process may have resident while it makes a database, where the medium
/// can give memory back.
const MEMORY: u64 = 256 << 20;

/// Options of a store that a command makes, and nobody else uses meanwhile.
pub fn making() -> StoreOptions {
    StoreOptions {
        memory: Some(MEMORY),
        ..StoreOptions::default().without_thread()
    }
}

/// Keyspace that a command makes where there is none.
pub const DEFAULT: &str = "default";

/// Keyspaces that a server's database has besides those of its numbered databases.
const BOOKKEEPING: [&str; 4] = ["elements", "expiries", "garbage", ORDER_KEYSPACE];

/// Returns the options that open a database so. It is not made if it is not there.
pub fn options(path: &Path, how: How) -> Options {
    let read_only = how.reads_only(path);
    let options = Database::builder()
        .create(false)
        .read_only(read_only)
        .durability(how.durability);
    let options = if read_only {
        options.vacuum_every(None)
    } else {
        options
    };
    match how.medium {
        Some(medium) => options.medium(medium),
        None => options,
    }
}

/// Damage of names that is told at opening.
const MAX_DAMAGE: usize = 3;

/// Opens a database that is there.
///
/// # Errors
/// It cannot be opened; the message names its path and, for a bare index, the command for that.
pub fn open(path: &Path, how: How) -> Outcome<Database> {
    let db = options(path, how)
        .open(path)
        .map_err(|e| unopened(path, &e))?;
    let recovery = db.recovery();
    // Opening compares the names of keyspaces, and no other entries.
    if recovery.damaged > 0 {
        for damaged in recovery.damage.iter().take(MAX_DAMAGE) {
            eprintln!("{}: damaged: {damaged}", path.display());
        }
        let more = recovery.damaged.saturating_sub(MAX_DAMAGE as u64);
        let more = if more > 0 {
            format!("{more} more; ")
        } else {
            String::new()
        };
        let path = shell_path(path);
        eprintln!("{more}`{} check {path}` names all damage", program());
    }
    Ok(db)
}

/// Makes a database.
///
/// # Errors
/// It is there already, or cannot be made.
pub fn create(path: &Path, how: How) -> Outcome<Database> {
    options(path, how)
        .create(true)
        .create_new(true)
        .open(path)
        .map_err(|e| Failure::new(e.to_string()))
}

/// Makes a pool for a store that a command is about to fill. Until it is
/// [kept](Unfinished::keep), its files go when the command fails or is ended.
///
/// # Errors
/// It is there already, or cannot be made.
pub fn new_pool(path: &Path, how: How) -> Outcome<(Arc<Pool<Auto>>, Unfinished)> {
    remove_temporary_files_on_signals()?;
    let options = how.options(Access::ReadWrite);
    let pool = Pool::<Auto>::create(path, &options).map_err(|e| match e {
        OpenError::Exists(_) => Failure::new(format!("{e}: name another file, or remove that one")),
        e => Failure::new(e.to_string()),
    })?;
    // Only what this command has made: not a device, nor a file that has the name of a journal.
    let [file, journal] = files_of(path);
    let has_journal = pool.info().medium == MediumKind::Journal;
    let files = [
        path.is_file().then_some(file),
        has_journal.then_some(journal),
    ];
    Ok((pool, Unfinished::new(files.into_iter().flatten())))
}

/// Returns the error of a database that did not open.
pub fn unopened(path: &Path, error: &bristlecone::Error) -> Failure {
    if error.kind() == ErrorKind::NotADatabase
        && let Ok(pool) = open_pool(path, READ)
        && let Err(failure) = expect(&pool, path)
    {
        return failure;
    }
    if error.kind() == ErrorKind::Damaged {
        let (failure, path) = (named(path, error), shell_path(path));
        let what = failure.message().unwrap_or("damaged");
        return Failure::new(format!(
            "{what}\n`{} repair {path} NEW` makes a database of all that is whole in it",
            program()
        ));
    }
    named(path, error)
}

/// Makes sure that a pool has a database in it.
///
/// # Errors
/// It has none; the message says what it has.
pub fn expect(pool: &Pool<Auto>, path: &Path) -> Outcome {
    let roots = pool.roots();
    if roots.iter().any(|root| root.name == ROOT) {
        return Ok(());
    }
    let what = "a pool without a database in it; `create` and `serve` make databases";
    if roots.iter().any(|root| root.name == BARE_INDEX) {
        return Err(about(
            path,
            &format_args!("holds a bare index, no database\n{}", export_index(path)),
        ));
    }
    Err(about(path, &what))
}

/// Returns the command that a bare index is for.
fn export_index(path: &Path) -> String {
    format!(
        "bristlecone-lab export {} rows.jsonl    # then `{} import` it into a database",
        shell_path(path),
        program()
    )
}

/// Returns an error of a database, with its path.
pub fn named(path: &Path, error: &bristlecone::Error) -> Failure {
    let text = error.to_string();
    if text.starts_with(&path.display().to_string()) {
        return Failure::new(text);
    }
    about(path, &text)
}

/// The keyspace that a command works on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A server's database.
    Served(usize),
    /// A keyspace of a program's.
    Named(String),
    /// One whose name is damaged, in a server's database: it is read as one of the numbered
    /// databases.
    Nameless(String),
}

/// Whether a database with these keyspaces is one that a server has written.
pub fn server_bookkeeping<'n>(keyspaces: impl IntoIterator<Item = &'n str>) -> bool {
    let found = keyspaces.into_iter();
    // One of the names may have been damaged.
    found.filter(|name| BOOKKEEPING.contains(name)).count() >= 2
}

/// Returns the number of a server's database that a keyspace of this name is for.
pub fn served(name: &str) -> Option<usize> {
    let number: usize = name.parse().ok().filter(|number| *number < DATABASES)?;
    (number.to_string() == name).then_some(number)
}

impl Place {
    /// Chooses the keyspace that was asked for, or the usual one, among those that are there.
    ///
    /// # Errors
    /// A usage error where several come into question, and an error for a server's bookkeeping.
    pub fn choose(path: &Path, asked: Option<&str>, there: &[String]) -> Outcome<Self> {
        let servers = server_bookkeeping(there.iter().map(String::as_str));
        let bookkeeping =
            |name: &str| servers && (BOOKKEEPING.contains(&name) || KEYSPACES.contains(&name));
        let open_to_all = |name: &&String| !bookkeeping(name);
        match asked {
            Some(name) => match served(name) {
                Some(number) => Ok(Self::Served(number)),
                None if servers && name.starts_with(NAMELESS) => {
                    Ok(Self::Nameless(name.to_owned()))
                }
                None if bookkeeping(name) => Err(about(
                    path,
                    &format_args!(
                        "keyspace {} is the server's own bookkeeping, which only `serve` reads; {}",
                        quoted(name.as_bytes()),
                        list(there.iter().filter(open_to_all))
                    ),
                )),
                None => Ok(Self::Named(name.to_owned())),
            },
            None if there.iter().any(|name| name == DEFAULT) => Ok(Self::Named(DEFAULT.into())),
            None if servers => Ok(Self::Served(0)),
            None => match there {
                [] => Ok(Self::Named(DEFAULT.into())),
                [one] => Ok(served(one).map_or(Self::Named(one.clone()), Self::Served)),
                several => Err(Failure::Usage(format!(
                    "{}: which keyspace? --keyspace names it: {}",
                    path.display(),
                    list(several)
                ))),
            },
        }
    }

    /// Returns the name of the keyspace that it has, by what a server keeps of the order of its
    /// databases.
    pub fn keyspace(&self, order: Option<&[u8]>) -> String {
        match self {
            Self::Served(number) => keyspace_of(order, *number).to_string(),
            Self::Named(name) | Self::Nameless(name) => name.clone(),
        }
    }

    /// Makes sure that a server's data has the version that this build reads.
    ///
    /// # Errors
    /// It has another one, or its record is damaged.
    pub fn check_format(&self, path: &Path, db: &Database) -> Outcome {
        if let (true, Some(records)) = (self.typed(), db.find_keyspace(ORDER_KEYSPACE)) {
            let record = records.get(FORMAT_KEY).map_err(|e| named(path, &e))?;
            check_format(record.as_deref()).map_err(|e| about(path, &e))?;
        }
        Ok(())
    }

    /// Returns the keyspace, if it is there.
    ///
    /// # Errors
    /// The record of the order of a server's databases is damaged.
    pub fn find(&self, db: &Database) -> bristlecone::Result<Option<Keyspace>> {
        let order = match (self, db.find_keyspace(ORDER_KEYSPACE)) {
            (Self::Served(_), Some(order)) => order.get(ORDER_KEY)?.map(|value| value.to_vec()),
            _ => None,
        };
        Ok(db.find_keyspace(&self.keyspace(order.as_deref())))
    }

    /// Whether values have types, as a server's have.
    pub fn typed(&self) -> bool {
        !matches!(self, Self::Named(_))
    }

    /// Returns what an entry shows; nothing if it has expired by `now`, in ms since 1970.
    ///
    /// # Errors
    /// It is in a server's database and no value that a server writes.
    pub fn show<'v>(&self, entry: &Entry<'v>, now: u64) -> Result<Option<Shown<'v>>, String> {
        if !self.typed() {
            return Ok(Some(Shown {
                kind: None,
                value: Some(entry.value),
                expires_at: entry.expires_at,
            }));
        }
        let head = Value::head(entry).map_err(|e| e.to_string())?;
        // A large collection's expiry is in its head, and the store knows nothing of it.
        if head.expires_at.is_some_and(|at| at <= now) {
            return Ok(None);
        }
        Ok(Some(Shown {
            kind: Some(head.kind.name()),
            value: string_of(entry.value),
            expires_at: head.expires_at,
        }))
    }
}

/// Makes sure that a server's database is not written into a program's database, whose keyspaces of
/// such names have no types.
///
/// # Errors
/// There is a program's keyspace of a name that a server gives.
pub fn check_served(path: &Path, place: &Place, there: &[String]) -> Outcome {
    let servers = server_bookkeeping(there.iter().map(String::as_str));
    let own = there.iter().find(|name| served(name).is_some());
    match (place, own) {
        (Place::Served(_), Some(own)) if !servers => Err(about(
            path,
            &format_args!(
                "keyspace {} is a program's own, and 0 to 15 are a server's here; rename it with the library first",
                quoted(own.as_bytes())
            ),
        )),
        _ => Ok(()),
    }
}

/// Returns the names of keyspaces in words.
pub fn list<'n>(names: impl IntoIterator<Item = &'n String>) -> String {
    let names = names.into_iter().map(|name| quoted(name.as_bytes()));
    let names: Vec<_> = names.collect();
    match names.len() {
        0 => "there are none".to_owned(),
        _ => format!("there are {}", names.join(", ")),
    }
}

/// Returns the names of a database's keyspaces.
pub fn keyspaces(db: &Database) -> Vec<String> {
    let keyspaces = db.keyspaces();
    keyspaces.iter().map(|k| k.name().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(asked: Option<&str>, there: &[&str]) -> Outcome<Place> {
        let there: Vec<String> = there.iter().map(|name| (*name).to_owned()).collect();
        Place::choose(Path::new("p"), asked, &there)
    }

    #[test]
    fn the_usual_keyspace_is_the_one_that_a_person_means() {
        let named = |name: &str| Place::Named(name.to_owned());
        let servers = ["0", "1", "elements", "expiries", "garbage", "databases"];
        assert_eq!(choose(None, &[]).unwrap(), named("default"));
        assert_eq!(choose(None, &["orders"]).unwrap(), named("orders"));
        assert_eq!(choose(None, &["a", "default"]).unwrap(), named("default"));
        assert!(matches!(choose(None, &["a", "b"]), Err(Failure::Usage(_))));
        assert_eq!(choose(None, &servers).unwrap(), Place::Served(0));
        let both: Vec<&str> = servers.into_iter().chain(["default"]).collect();
        assert_eq!(choose(None, &both).unwrap(), named("default"));
        assert_eq!(choose(Some("3"), &both).unwrap(), Place::Served(3));
        assert_eq!(choose(Some("16"), &both).unwrap(), named("16"));
        assert_eq!(choose(Some("03"), &both).unwrap(), named("03"));
        assert!(choose(Some("elements"), &servers).is_err());
        assert_eq!(choose(Some("elements"), &["a"]).unwrap(), named("elements"));
    }
}
