//! Telling the log of what the store does in the background: scrubbing, archiving.

use crate::server::Server;
use std::collections::BTreeSet;

/// Damaged places that are logged at once.
const MOST_TOLD: usize = 3;

/// The last events that the log has.
#[derive(Debug, Default)]
pub struct Told {
    rounds: u64,
    damage: BTreeSet<String>,
    /// The error of archiving.
    archive_error: Option<String>,
    states: u64,
}

impl Told {
    /// Logs what is new.
    pub fn tell(&mut self, server: &Server) {
        tell_of_scrubbing(server, self);
        tell_of_archive(server, self);
    }
}

/// Logs that archiving fails, or works again, and states that were completed.
fn tell_of_archive(server: &Server, told: &mut Told) {
    let Some(now) = server.data.store().archive_stats() else {
        return;
    };
    if now.error != told.archive_error {
        match &now.error {
            Some(error) => tracing::error!(
                %error,
                queued_bytes = now.queued_bytes,
                "archiving fails; commits wait in memory, and are tried again"
            ),
            None => tracing::info!(archived = now.archived, "archiving works again"),
        }
        told.archive_error = now.error;
    }
    let states = now.full_states + now.incremental_states;
    if states > told.states {
        tracing::info!(
            full = now.full_states,
            incremental = now.incremental_states,
            archived = now.archived,
            "archived a state"
        );
    }
    told.states = states;
}

/// Logs damage that scrubbing has found since, and rounds that came to their end.
fn tell_of_scrubbing(server: &Server, told: &mut Told) {
    let store = server.data.store();
    let now = store.scrub_stats();
    if now.damaged > 0 || !told.damage.is_empty() {
        let found = store.scrub_findings();
        let found: BTreeSet<String> = found.iter().map(ToString::to_string).collect();
        let new: Vec<&String> = found.difference(&told.damage).collect();
        for place in new.iter().take(MOST_TOLD) {
            tracing::error!(%place, "scrubbing has found damage; nothing was taken away");
        }
        if !new.is_empty() {
            tracing::error!(
                damaged = now.damaged,
                "the pool is damaged: stop the server; `bristlecone check` names all of it, `bristlecone repair` makes a \
                 database of what is whole"
            );
        }
        told.damage = found;
    }
    if now.rounds > told.rounds {
        tracing::debug!(
            rounds = now.rounds,
            damaged = now.damaged,
            "scrubbed all of the pool"
        );
    }
    told.rounds = now.rounds;
}
