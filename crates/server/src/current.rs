//! What the commands of a connection go by: the settings, and its user's rights. Others may change
//! both at any time; a connection adopts changes where a batch of commands begins.

use crate::config::Settings;
use crate::server::Server;
use crate::users::User;
use std::sync::Arc;

/// Settings and user as they were when last [renewed](Self::renew).
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) settings: Arc<Settings>,
    pub(crate) user: Arc<User>,
    settings_generation: u64,
    users_generation: u64,
}

/// What has become of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Same,
    /// Its rights may be others now.
    Changed,
    Deleted,
}

impl Current {
    /// Those of a connection that has just been made: of the default user.
    pub(crate) fn new(server: &Server) -> Self {
        Self {
            // Numbers first: what changes in between is adopted once more.
            settings_generation: server.generation(),
            users_generation: server.users.generation(),
            settings: server.settings(),
            user: server.default_user(),
        }
    }

    /// Adopts the current settings and rights.
    pub(crate) fn renew(&mut self, server: &Server) -> Fate {
        let generation = server.generation();
        if self.settings_generation != generation {
            self.settings_generation = generation;
            self.settings = server.settings();
        }
        self.renew_user(server)
    }

    /// Adopts the current rights.
    pub(crate) fn renew_user(&mut self, server: &Server) -> Fate {
        let generation = server.users.generation();
        if self.users_generation == generation {
            return Fate::Same;
        }
        self.users_generation = generation;
        match server.users.get(self.user.name.as_bytes()) {
            Some(user) => {
                self.user = user;
                Fate::Changed
            }
            None => Fate::Deleted,
        }
    }
}
