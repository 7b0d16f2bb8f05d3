//! Channels, and the clients that subscribed to them.

use crate::client::Client;
use crate::parse::glob;
use crate::reply::{Out, Protocol};
use crate::users::User;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

type Listeners = HashMap<u64, Arc<Client>>;

#[derive(Debug, Default)]
struct Inner {
    channels: HashMap<Arc<[u8]>, Listeners>,
    patterns: HashMap<Arc<[u8]>, Listeners>,
}

/// All subscriptions.
#[derive(Debug, Default)]
pub struct PubSub(RwLock<Inner>);

impl PubSub {
    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribes a client to a channel, or to a pattern.
    pub fn subscribe(&self, name: &[u8], is_pattern: bool, client: &Arc<Client>) {
        let mut inner = self.write();
        let names = if is_pattern {
            &mut inner.patterns
        } else {
            &mut inner.channels
        };
        let listeners = names.entry(name.into()).or_default();
        listeners.insert(client.id, Arc::clone(client));
    }

    /// Ends a subscription.
    pub fn unsubscribe(&self, name: &[u8], is_pattern: bool, client: u64) {
        let mut inner = self.write();
        let names = if is_pattern {
            &mut inner.patterns
        } else {
            &mut inner.channels
        };
        if let Some(listeners) = names.get_mut(name) {
            listeners.remove(&client);
            if listeners.is_empty() {
                names.remove(name);
            }
        }
    }

    /// Returns the patterns that match a channel.
    fn matching(&self, channel: &[u8]) -> Vec<Arc<[u8]>> {
        // Matching may take long, and others must not wait for the lock meanwhile.
        let mut matching: Vec<Arc<[u8]>> = self.read().patterns.keys().cloned().collect();
        matching.retain(|pattern| glob::matches(pattern, channel));
        matching
    }

    /// Sends a message. Returns the number of clients that receive it.
    pub fn publish(&self, channel: &[u8], message: &[u8], limit: usize) -> usize {
        let matching = self.matching(channel);
        let inner = self.read();
        let mut told = 0;
        if let Some(listeners) = inner.channels.get(channel) {
            told += send(listeners, &[b"message", channel, message], limit);
        }
        for pattern in matching {
            if let Some(listeners) = inner.patterns.get(&pattern) {
                told += send(listeners, &[b"pmessage", &pattern, channel, message], limit);
            }
        }
        told
    }

    /// Returns the number of clients that would receive a message.
    #[must_use]
    pub fn hearing(&self, channel: &[u8]) -> usize {
        let matching = self.matching(channel);
        let inner = self.read();
        let of_channel = inner.channels.get(channel);
        let of_patterns = matching
            .iter()
            .filter_map(|pattern| inner.patterns.get(pattern));
        of_channel
            .into_iter()
            .chain(of_patterns)
            .map(HashMap::len)
            .sum()
    }

    /// Returns the clients of a user whose subscriptions the user's rights no longer allow.
    #[must_use]
    pub fn not_allowed(&self, user: &User) -> Vec<Arc<Client>> {
        let mut found = BTreeMap::new();
        let inner = self.read();
        for (names, is_pattern) in [(&inner.channels, false), (&inner.patterns, true)] {
            for (name, listeners) in names {
                let theirs = listeners
                    .values()
                    .filter(|client| client.names().user == user.name);
                let theirs: Vec<&Arc<Client>> = theirs.collect();
                if !theirs.is_empty() && !user.may_hear(name, is_pattern) {
                    let theirs = theirs.into_iter();
                    found.extend(theirs.map(|client| (client.id, Arc::clone(client))));
                }
            }
        }
        found.into_values().collect()
    }

    /// Returns the channels that have subscribers and match a pattern.
    #[must_use]
    pub fn channels(&self, pattern: &[u8]) -> Vec<Arc<[u8]>> {
        let mut names: Vec<Arc<[u8]>> = self.read().channels.keys().cloned().collect();
        let pattern = glob::Pattern::new(pattern);
        names.retain(|name| pattern.matches(name));
        names
    }

    /// Returns the number of subscribers of a channel.
    #[must_use]
    pub fn listeners(&self, channel: &[u8]) -> usize {
        self.read().channels.get(channel).map_or(0, HashMap::len)
    }

    /// Returns the numbers of channels and of patterns that have subscribers.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let inner = self.read();
        (inner.channels.len(), inner.patterns.len())
    }
}

fn send(listeners: &Listeners, words: &[&[u8]], limit: usize) -> usize {
    let encode = |protocol| {
        let mut encoded = Vec::new();
        let mut out = Out::new(&mut encoded, protocol);
        out.push(words.len());
        words.iter().for_each(|word| out.bulk(word));
        encoded
    };
    let (two, three) = (encode(Protocol::Resp2), encode(Protocol::Resp3));
    for client in listeners.values() {
        let message = match client.protocol() {
            Protocol::Resp2 => &two,
            Protocol::Resp3 => &three,
        };
        client.deliver(message, limit);
    }
    listeners.len()
}
