//! What is exported: the index of a pool or a keyspace of its store, damaged or not.

use crate::args::Export;
use crate::failure::{Failure, Outcome};
use crate::keyspaces::{self, Form, Shown, Survey};
use crate::store::{Contents, How, Range, Store, open_pool};
use crate::text::{program, quoted, shell_path};
use bristlecone_designs::damage::Damage;
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::pool::Pool;
use indicatif::ProgressBar;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is called for each record.
type Visit<'a> = &'a mut dyn FnMut(&[u8], &Shown<'_>) -> ControlFlow<()>;

/// Where the records come from.
pub enum Source {
    /// The index.
    Index {
        /// It.
        store: Box<Store>,
        /// What is damaged in it.
        damage: Damage,
        /// Damaged blocks that were named with their keys.
        named: BTreeSet<u64>,
        /// What is wrong with it as a whole.
        violation: Option<String>,
    },
    /// A keyspace.
    Keyspace {
        /// The pool.
        pool: Arc<Pool<Auto>>,
        /// Its path.
        path: PathBuf,
        /// The store.
        name: String,
        /// The keyspace.
        keyspace: String,
        /// How its values are read.
        form: Form,
        /// What was found out about the store.
        survey: Box<Survey>,
        /// Entries of the keyspace that were skipped.
        skipped: u64,
    },
}

fn report(bar: &ProgressBar, what: &dyn Display) {
    bar.suspend(|| eprintln!("{what}"));
}

/// Refuses to export a pool with that damage.
fn refuse(args: &Export, what: &dyn Display) -> Failure {
    let (pool, file) = (shell_path(&args.pool), shell_path(&args.file));
    Failure::new(format!(
        "{}: damaged: {what}; nothing was written\n`{1} check {pool}` lists all damage, `{1} export --skip-damaged {pool} {file}` saves the rest",
        args.pool.display(),
        program(),
    ))
}

/// Adds what can be done where nothing can be saved.
fn beyond_saving(failure: &Failure) -> Failure {
    Failure::new(format!(
        "{}; so much is damaged that no records can be found: restore a backup",
        failure.message().unwrap_or("failed")
    ))
}

impl Source {
    /// Opens what is to be exported.
    ///
    /// # Errors
    /// It is damaged and damage is not to be skipped, or nothing can be read.
    pub fn open(args: &Export) -> Outcome<Self> {
        let pool = open_pool(&args.pool, How::read(args.medium))?;
        let contents = Contents::of(&pool);
        let asked = args.keyspace.as_deref();
        match keyspaces::source(&contents, &args.pool, asked)? {
            None if args.skip_damaged => Self::damaged_index(&pool, &args.pool),
            None => Self::whole_index(args, &pool),
            Some(name) => Self::keyspace(args, &pool, name),
        }
    }

    fn whole_index(args: &Export, pool: &Arc<Pool<Auto>>) -> Outcome<Self> {
        let store = Store::open_in(pool, &args.pool).map_err(|e| {
            // Damaged so that it can be opened only if damage is passed over?
            match Store::survey(pool, &args.pool) {
                (Ok(_), damage) if !damage.blocks.is_empty() => {
                    let path = format!("{}: ", args.pool.display());
                    let what = e.message().unwrap_or("failed");
                    refuse(args, &what.strip_prefix(&path).unwrap_or(what))
                }
                _ => e,
            }
        })?;
        match store.verify() {
            // What is lost is space.
            Err(violation) if !violation.leak => return Err(refuse(args, &violation)),
            _ => {}
        }
        Ok(Self::Index {
            store: Box::new(store),
            damage: Damage::default(),
            named: BTreeSet::new(),
            violation: None,
        })
    }

    fn damaged_index(pool: &Arc<Pool<Auto>>, path: &Path) -> Outcome<Self> {
        let has_index = Contents::of(pool).index.is_some();
        let (surveyed, damage) = Store::survey(pool, path);
        let (store, violation) =
            surveyed.map_err(|e| if has_index { beyond_saving(&e) } else { e })?;
        Ok(Self::Index {
            store: Box::new(store),
            damage,
            named: BTreeSet::new(),
            violation: violation.filter(|v| !v.leak).map(|v| v.to_string()),
        })
    }

    fn keyspace(args: &Export, pool: &Arc<Pool<Auto>>, name: &str) -> Outcome<Self> {
        let path = &args.pool;
        let survey = Survey::of(pool, path, name).map_err(|e| {
            if args.skip_damaged {
                beyond_saving(&e)
            } else {
                e
            }
        })?;
        let damage = survey.problems().next();
        if let Some(what) = damage
            && !args.skip_damaged
        {
            return Err(refuse(args, &what));
        }
        let mut there = survey.report.keyspaces.clone();
        // Those whose names are damaged go by their numbers.
        let nameless = survey.whole.keys().filter(|name| !there.contains(name));
        let nameless: Vec<String> = nameless.cloned().collect();
        there.extend(nameless);
        let (keyspace, form) = keyspaces::keyspace(path, args.keyspace.as_deref(), &there)?;
        Ok(Self::Keyspace {
            pool: Arc::clone(pool),
            path: path.clone(),
            name: name.to_owned(),
            keyspace: keyspace.to_owned(),
            form,
            survey: Box::new(survey),
            skipped: 0,
        })
    }

    /// How values are read.
    pub fn form(&self) -> Form {
        match self {
            Self::Index { .. } => Form::Bytes,
            Self::Keyspace { form, .. } => *form,
        }
    }

    /// About how many records there are.
    pub fn entries(&self) -> u64 {
        match self {
            Self::Index { store, .. } => index_entries(store),
            Self::Keyspace {
                survey, keyspace, ..
            } => survey.whole.get(keyspace).copied().unwrap_or(0),
        }
    }

    /// Whether anything is damaged.
    pub fn is_damaged(&self) -> bool {
        match self {
            Self::Index {
                damage, violation, ..
            } => !damage.blocks.is_empty() || violation.is_some(),
            Self::Keyspace {
                survey, skipped, ..
            } => *skipped > 0 || survey.problems().next().is_some(),
        }
    }

    /// Visits the records that are whole, in key order. With a bar, the others are named on standard error, above it.
    ///
    /// # Errors
    /// The store cannot be walked any more.
    pub fn each(&mut self, bar: Option<&ProgressBar>, visit: Visit<'_>) -> Outcome {
        match self {
            Self::Index {
                store,
                damage,
                named,
                ..
            } => {
                let pm = store.pool().pm();
                store.scan(&Range::ALL, false, |key, value| {
                    let broken = [("key", key), ("value", value)]
                        .into_iter()
                        .find_map(|(part, string)| Some((part, damage.block_of(pm, string)?)));
                    let Some((part, block)) = broken else {
                        let shown = Shown {
                            kind: None,
                            value: Some(value),
                            expires_at: None,
                        };
                        return visit(key, &shown);
                    };
                    if let Some(bar) = bar {
                        named.insert(block);
                        let what = damage.blocks.get(&block).map_or("", String::as_str);
                        let key = quoted(key);
                        report(bar, &format_args!("skipped key {key}: its {part}: {what}"));
                    }
                    ControlFlow::Continue(())
                });
                Ok(())
            }
            Self::Keyspace {
                pool,
                path,
                name,
                keyspace,
                form,
                skipped,
                ..
            } => {
                let now = keyspaces::now();
                let walked = keyspaces::salvage(pool, path, name, &mut |salvaged| {
                    if keyspaces::keyspace_name(&salvaged) != *keyspace {
                        return ControlFlow::Continue(());
                    }
                    let shown = match &salvaged.found {
                        Ok(entry) => form.show(entry, now),
                        Err(e) => Err(e.to_string()),
                    };
                    match shown {
                        Ok(Some(shown)) => visit(salvaged.key, &shown),
                        Ok(None) => ControlFlow::Continue(()),
                        Err(what) => {
                            if let Some(bar) = bar {
                                *skipped += 1;
                                let key = quoted(salvaged.key);
                                report(bar, &format_args!("skipped key {key}: {what}"));
                            }
                            ControlFlow::Continue(())
                        }
                    }
                });
                walked.map(drop)
            }
        }
    }

    /// Names the damage that no key was named for, and returns how many records were skipped, where `written` were not.
    pub fn finish(&self, written: u64, bar: &ProgressBar) -> u64 {
        match self {
            Self::Index {
                store,
                damage,
                named,
                violation,
            } => {
                let others = damage.blocks.iter().filter(|(off, _)| !named.contains(off));
                for (_, what) in others {
                    report(bar, &format_args!("skipped, if it was in use: {what}"));
                }
                if let Some(violation) = violation {
                    report(bar, &format_args!("damaged: {violation}"));
                }
                index_entries(store).saturating_sub(written)
            }
            Self::Keyspace {
                survey, skipped, ..
            } => {
                for name in survey.broken.iter().filter(|broken| broken.is_name) {
                    report(bar, &format_args!("damaged: {}: {}", name.entry, name.what));
                }
                for what in survey.index.blocks.values() {
                    report(bar, &format_args!("damaged: index: {what}"));
                }
                if let Some(violation) = &survey.report.violation {
                    report(bar, &format_args!("damaged: index: {violation}"));
                }
                if survey.unseen() > 0 {
                    let unseen = survey.unseen();
                    report(
                        bar,
                        &format_args!(
                            "skipped {unseen} keys that cannot be read, of whatever keyspace"
                        ),
                    );
                }
                skipped + survey.unseen()
            }
        }
    }
}

/// Entries of an index: that it counts, or that opening it came across if damage kept it from counting some.
fn index_entries(store: &Store) -> u64 {
    store.stats().entries.max(store.recovery().entries)
}
