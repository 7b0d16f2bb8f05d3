//! Steps that make, drop, rename and vacuum keyspaces.

use super::bench::{Bench, Outcome, ensure, same};
use super::model::Change;
use super::program::Which;
use crate::common::TREE;
use bristlecone_store::WriteError;

impl Bench<'_> {
    pub(super) fn make(&mut self, name: &'static str) -> Outcome {
        let made = self.store().keyspace(name).map_err(|e| e.to_string())?;
        match self.model.find(name) {
            Some(there) => same("keyspace", &Some(&made), &self.handles[there].as_ref()),
            None => {
                self.model.name(None, Some(name));
                self.handles.push(Some(made));
                Ok(())
            }
        }
    }

    pub(super) fn drop_keyspace(&mut self, which: Which, clears: bool) -> Outcome {
        let Some((space, k)) = self.resolve(which) else {
            return Ok(());
        };
        let name = self.model.spaces[space].name();
        if clears {
            let cleared = self.store().clear(k);
            if let Some(empty) = self.written(space, cleared)? {
                same("name", &Some(empty.name()), &name)?;
                self.model.name(Some(space), None);
                self.model.commit -= 1;
                self.model.name(None, name);
                self.handles.push(Some(empty));
            }
        } else {
            let dropped = self.store().drop_keyspace(k);
            if self.written(space, dropped)?.is_some() {
                self.model.name(Some(space), None);
            }
        }
        Ok(())
    }

    pub(super) fn rename(&mut self, which: Which, to: &'static str) -> Outcome {
        let Some((space, k)) = self.resolve(which) else {
            return Ok(());
        };
        let renamed = self.store().rename_keyspace(&k, to);
        let from = self.model.spaces[space].name();
        let taken = self.model.find(to).is_some_and(|other| other != space);
        match renamed {
            Err(WriteError::Exists { .. }) if from.is_some() && taken => Ok(()),
            answer => {
                if let Some(renamed) = self.written(space, answer)? {
                    same("renamed over another", &taken, &false)?;
                    same("name", &renamed.name(), &to)?;
                    if from != Some(to) {
                        self.model.name(Some(space), Some(to));
                    }
                }
                Ok(())
            }
        }
    }

    /// Compares what is left with what the vacuum may have removed. It says how many it removed,
    /// and `all` that have expired have to be gone.
    pub(super) fn vacuumed(&mut self, expired: Option<u64>, all: bool) -> Outcome {
        let mut gone = Vec::<Change>::new();
        // Nothing has expired at that time.
        self.hands.set(0);
        for (number, space) in self.model.spaces.iter().enumerate() {
            let Some(k) = self.handles[number]
                .as_ref()
                .filter(|_| space.name().is_some())
            else {
                continue;
            };
            for key in &self.program.keys {
                let newest = space.newest(key);
                let found = self.newest_by(k, key).map_err(|e| e.to_string())?;
                if found.as_ref() == newest {
                    let stays = newest.is_none_or(|newest| newest.is_live(self.model.wall));
                    // Version records stay for as long as a snapshot reads them.
                    ensure!(
                        stays || !all || self.design != TREE,
                        "{} is left",
                        key.escape_ascii()
                    );
                    continue;
                }
                let has_expired = newest.is_some_and(|newest| !newest.is_live(self.horizon()));
                ensure!(
                    has_expired && found.is_none(),
                    "after a vacuum, {} has {found:?}, not {newest:?}",
                    key.escape_ascii()
                );
                gone.push((number, key.clone(), None));
            }
        }
        self.hands.set(self.model.wall);
        if let Some(expired) = expired {
            // Those of dropped keyspaces count too, while a snapshot keeps these.
            let has_dropped = self.model.spaces.iter().any(|space| space.name().is_none());
            let found = gone.len() as u64;
            ensure!(
                expired == found || has_dropped && expired > found,
                "{expired} keys expired, of which {found} were there"
            );
        }
        self.model.change(gone, true);
        Ok(())
    }

    /// Returns the time up to which expired values may be vacuumed.
    fn horizon(&self) -> u64 {
        if self.design == TREE {
            self.model.wall
        } else {
            // Nobody reads by an earlier time than a snapshot has had.
            self.model.wall.max(self.model.latest)
        }
    }
}
