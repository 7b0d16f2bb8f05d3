//! The target that is in this process: a database, opened with the library.

use super::plan::{self, Content, Step};
use super::{Client, Target};
use bristlecone::{Batch, Database, Keyspace};

/// A database and its two keyspaces: for long values, and for all others.
#[derive(Clone)]
pub struct Opened {
    db: Database,
    short: Keyspace,
    long: Keyspace,
}

fn text(e: bristlecone::Error) -> String {
    e.to_string()
}

fn is_long(key: &[u8]) -> bool {
    key.windows(6).any(|part| part == b"/long/")
}

impl Opened {
    /// Makes a database at that path, or opens the one that is there.
    pub fn new(path: &str, create: bool) -> Result<Self, String> {
        let options = Database::builder().create(create).create_new(create);
        let db = options.open(path).map_err(text)?;
        if !create
            && ["short", "long"]
                .iter()
                .any(|name| db.find_keyspace(name).is_none())
        {
            return Err("a keyspace is gone".to_owned());
        }
        Ok(Self {
            short: db.keyspace("short").map_err(text)?,
            long: db.keyspace("long").map_err(text)?,
            db,
        })
    }

    fn of(&self, key: &[u8]) -> &Keyspace {
        if is_long(key) {
            &self.long
        } else {
            &self.short
        }
    }
}

impl Target for Opened {
    fn medium(&self) -> Result<String, String> {
        Ok(self.db.medium().name().to_owned())
    }

    fn check(&self) -> Result<Content, String> {
        self.db.check().map_err(text)?;
        let damaged = self.db.recovery().damaged;
        if damaged > 0 {
            return Err(format!("opening found {damaged} damaged places"));
        }
        let mut content = Content::new();
        for keyspace in [&self.short, &self.long] {
            for entry in keyspace {
                let (key, value) = entry.map_err(text)?;
                if self.of(&key) != keyspace {
                    let key = key.escape_ascii();
                    return Err(format!("{key} is in keyspace {}", keyspace.name()));
                }
                content.insert(key.to_vec(), value.to_vec());
            }
        }
        Ok(content)
    }

    fn client(&self) -> Result<Box<dyn Client>, String> {
        Ok(Box::new(self.clone()))
    }
}

impl Client for Opened {
    fn commit(&mut self, thread: u16, step: &Step) -> Result<(), String> {
        if step.compacts {
            self.db.compact().map_err(text)?;
        }
        if step.counts {
            return self.count(thread, step).map_err(text);
        }
        if let [(key, Some(value))] = &step.changes[..] {
            return self.of(key).insert(key, value).map_err(text);
        }
        let mut batch = Batch::new();
        for (key, value) in &step.changes {
            match value {
                Some(value) => batch.insert(self.of(key), key, value),
                None => batch.remove(self.of(key), key),
            }
        }
        self.db.write(batch).map(drop).map_err(text)
    }
}

impl Opened {
    /// A transaction that reads before it writes, and meets those of other threads.
    fn count(&self, thread: u16, step: &Step) -> bristlecone::Result<()> {
        self.db.transaction(|tx| {
            for counter in [plan::counter(thread), plan::SHARED.to_vec()] {
                let old = tx.get(&self.short, &counter)?;
                let old = match old.map(String::from_utf8) {
                    None => 0,
                    Some(text) => text
                        .map_err(bristlecone::Error::other)?
                        .parse::<u64>()
                        .map_err(bristlecone::Error::other)?,
                };
                tx.insert(&self.short, &counter, (old + 1).to_string())?;
            }
            for (key, value) in &step.changes {
                match value {
                    Some(value) => tx.insert(self.of(key), key, value)?,
                    None => tx.remove(self.of(key), key)?,
                }
            }
            Ok(())
        })
    }
}
