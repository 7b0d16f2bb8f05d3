//! Wrong passwords: the more come from an address, the later it gets its reply.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Wrong passwords that are answered at once: people make mistakes.
const FREE: u32 = 3;
/// The delay after these. Each further wrong password doubles it.
const FIRST: Duration = Duration::from_millis(100);
/// The longest delay.
const LONGEST: Duration = Duration::from_secs(10);
/// After so long without one an address begins anew.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// The most addresses that are remembered.
const MOST: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Guess {
    wrong: u32,
    last: Instant,
}

/// Addresses that sent wrong passwords.
#[derive(Debug, Default)]
pub struct Guesses(Mutex<HashMap<IpAddr, Guess>>);

/// The part of a client's address that its owner does not choose: of an IPv6 address the network.
fn owner(address: &str) -> Option<IpAddr> {
    let address = address.parse::<SocketAddr>().ok()?.ip().to_canonical();
    Some(match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() >> 64 << 64).into()),
    })
}

impl Guesses {
    fn all(&self) -> MutexGuard<'_, HashMap<IpAddr, Guess>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a wrong password from a client's address. Returns how long its reply has to wait.
    pub fn note(&self, address: &str, now: Instant) -> Duration {
        let Some(owner) = owner(address) else {
            return Duration::ZERO;
        };
        let mut all = self.all();
        let fresh = |guess: &Guess| now.duration_since(guess.last) < FORGOTTEN;
        if all.len() >= MOST && !all.contains_key(&owner) {
            all.retain(|_, guess| fresh(guess));
            if all.len() >= MOST {
                // Forget the address with the fewest wrong passwords.
                let least = all
                    .iter()
                    .min_by_key(|(_, guess)| (guess.wrong, guess.last));
                if let Some(least) = least.map(|(owner, _)| *owner) {
                    all.remove(&least);
                }
            }
        }
        let before = all.get(&owner).filter(|guess| fresh(guess));
        let wrong = before.map_or(0, |guess| guess.wrong).saturating_add(1);
        all.insert(owner, Guess { wrong, last: now });
        match wrong.checked_sub(FREE + 1) {
            None => Duration::ZERO,
            Some(doubled) => {
                let factor = 1_u32.checked_shl(doubled).unwrap_or(u32::MAX);
                FIRST.saturating_mul(factor).min(LONGEST)
            }
        }
    }

    /// A right password came from that address.
    pub fn forget(&self, address: &str) {
        if let Some(owner) = owner(address) {
            self.all().remove(&owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_and_are_forgotten() {
        let guesses = Guesses::default();
        let now = Instant::now();
        let delays: Vec<u64> = (0..12)
            .map(|port| {
                let address = format!("10.0.0.7:{}", 1000 + port);
                guesses.note(&address, now).as_millis() as u64
            })
            .collect();
        let expected = [
            0, 0, 0, 100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000,
        ];
        assert_eq!(delays, expected);
        // Others do not wait, unless they are of the same network.
        assert_eq!(guesses.note("10.0.0.8:1", now), Duration::ZERO);
        for last in 0..4 {
            let delay = guesses.note(&format!("[2001:db8::{last}]:1"), now);
            assert_eq!(delay.is_zero(), last < 3);
        }
        guesses.forget("10.0.0.7:9");
        assert_eq!(guesses.note("10.0.0.7:1", now), Duration::ZERO);
        let later = now + FORGOTTEN;
        assert_eq!(guesses.note("[2001:db8::9]:1", later), Duration::ZERO);
    }

    #[test]
    fn few_addresses_are_remembered() {
        let guesses = Guesses::default();
        let now = Instant::now();
        for _ in 0..5 {
            guesses.note("10.9.9.9:1", now);
        }
        for n in 0..2 * MOST as u32 {
            let address = IpAddr::V4((0x0B00_0000 + n).into());
            guesses.note(&SocketAddr::new(address, 1).to_string(), now);
        }
        assert!(guesses.all().len() <= MOST);
        assert_eq!(guesses.note("10.9.9.9:1", now), FIRST * 4);
    }
}
