//! The settings and the user's rights that a connection's commands run under. Both can change at
//! any time. A connection picks up changes at the start of each batch of commands.

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

/// Whether a user was changed or deleted since the last renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserState {
    Unchanged,
    /// Its rights may differ.
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
    pub(crate) fn renew(&mut self, server: &Server) -> UserState {
        let generation = server.generation();
        if self.settings_generation != generation {
            self.settings_generation = generation;
            self.settings = server.settings();
        }
        self.renew_user(server)
    }

    /// Adopts the current rights.
    pub(crate) fn renew_user(&mut self, server: &Server) -> UserState {
        let generation = server.users.generation();
        if self.users_generation == generation {
            return UserState::Unchanged;
        }
        self.users_generation = generation;
        match server.users.get(self.user.name.as_bytes()) {
            Some(user) => {
                self.user = user;
                UserState::Changed
            }
            None => UserState::Deleted,
        }
    }
}
