//! Channels, and who listens to them.

use crate::client::Client;
use crate::data::glob;
use crate::reply::{Out, Protocol};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

type Listeners = HashMap<u64, Arc<Client>>;

#[derive(Debug, Default)]
struct Inner {
    channels: HashMap<Vec<u8>, Listeners>,
    patterns: HashMap<Vec<u8>, Listeners>,
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

    /// Lets a client listen to a channel, or to those of a pattern.
    pub fn subscribe(&self, name: &[u8], is_pattern: bool, client: &Arc<Client>) {
        let mut inner = self.write();
        let names = if is_pattern {
            &mut inner.patterns
        } else {
            &mut inner.channels
        };
        let listeners = names.entry(name.to_vec()).or_default();
        listeners.insert(client.id, Arc::clone(client));
    }

    /// Ends that.
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

    /// Sends a message; returns how many receive it.
    pub fn publish(&self, channel: &[u8], message: &[u8], limit: usize) -> usize {
        let inner = self.read();
        let mut told = 0;
        if let Some(listeners) = inner.channels.get(channel) {
            told += send(listeners, &[b"message", channel, message], limit);
        }
        for (pattern, listeners) in &inner.patterns {
            if glob::matches(pattern, channel) {
                told += send(listeners, &[b"pmessage", pattern, channel, message], limit);
            }
        }
        told
    }

    /// Channels that somebody listens to, and that match.
    #[must_use]
    pub fn channels(&self, pattern: &[u8]) -> Vec<Vec<u8>> {
        let inner = self.read();
        let matching = inner
            .channels
            .keys()
            .filter(|name| glob::matches(pattern, name));
        matching.cloned().collect()
    }

    /// How many listen to a channel.
    #[must_use]
    pub fn listeners(&self, channel: &[u8]) -> usize {
        self.read().channels.get(channel).map_or(0, HashMap::len)
    }

    /// How many channels, and how many patterns, are listened to.
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
