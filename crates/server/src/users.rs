//! Users: their passwords, and their rights to commands, keys and channels.

use crate::parse::glob;
use crate::table;
use crate::table::{CATEGORIES, Entry, Table};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// The user of clients that have not named one.
pub const DEFAULT: &str = "default";

/// The SHA-256 of a password.
type Hash = [u8; 32];

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its name.
    pub name: String,
    /// It may log in.
    pub on: bool,
    /// It needs no password.
    pub nopass: bool,
    passwords: Vec<Hash>,
    /// The rules on commands, in the order in which they were given.
    rules: Vec<String>,
    /// Whether each command is allowed, by its number.
    allowed: Vec<bool>,
    keys: Vec<Vec<u8>>,
    channels: Vec<Vec<u8>>,
    /// It may use the administrative subcommands of commands that others may use, too.
    pub admin: bool,
    /// Everything is allowed.
    pub everything: bool,
}

fn hash(password: &[u8]) -> Hash {
    Sha256::digest(password).into()
}

fn hex(hash: &Hash) -> String {
    hash.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn parse_hash(text: &[u8]) -> Option<Hash> {
    let mut hash = [0; 32];
    if text.len() != 64 || text.iter().any(u8::is_ascii_uppercase) {
        return None;
    }
    for (byte, digits) in hash.iter_mut().zip(text.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(hash)
}

const UNKNOWN: &str = "Unknown command or category name in ACL";

impl User {
    /// Returns a user without rights that cannot log in.
    #[must_use]
    pub fn without_rights(name: &str) -> Self {
        Self {
            name: name.into(),
            on: false,
            nopass: false,
            passwords: Vec::new(),
            rules: vec!["-@all".into()],
            allowed: Vec::new(),
            keys: Vec::new(),
            channels: Vec::new(),
            admin: false,
            everything: false,
        }
    }

    fn new(name: &str, table: &Table) -> Self {
        Self {
            allowed: vec![false; table.entries().len()],
            ..Self::without_rights(name)
        }
    }

    /// Returns true if the password is right. Takes the same time for every password.
    #[must_use]
    pub fn knows(&self, password: &[u8]) -> bool {
        let hash = hash(password);
        let same = |known: &Hash| {
            let differs = known
                .iter()
                .zip(&hash)
                .fold(0, |bits, (a, b)| bits | (a ^ b));
            differs == 0
        };
        let mut found = self.nopass;
        for known in &self.passwords {
            found |= same(known);
        }
        found
    }

    /// Returns true if it may use the command.
    #[must_use]
    pub fn may(&self, entry: &Entry) -> bool {
        self.everything || self.allowed.get(entry.index).is_some_and(|may| *may)
    }

    /// Returns true if it may access the key.
    #[must_use]
    pub fn may_touch(&self, key: &[u8]) -> bool {
        self.everything || self.keys.iter().any(|pattern| glob::matches(pattern, key))
    }

    /// Returns true if it may access every key.
    #[must_use]
    pub fn may_touch_all(&self) -> bool {
        self.everything || self.keys.iter().any(|pattern| pattern == b"*")
    }

    /// Returns true if it may use the channel. A pattern has to be one of its own patterns.
    #[must_use]
    pub fn may_hear(&self, channel: &[u8], is_pattern: bool) -> bool {
        let mut patterns = self.channels.iter();
        self.everything
            || patterns.any(|pattern| {
                pattern == b"*"
                    || if is_pattern {
                        pattern == channel
                    } else {
                        glob::matches(pattern, channel)
                    }
            })
    }

    /// Applies one rule of `ACL SETUSER`.
    fn apply(&mut self, rule: &[u8], table: &Table) -> Result<(), String> {
        let syntax = || "Syntax error".to_owned();
        let word = String::from_utf8_lossy(rule).to_ascii_lowercase();
        match (word.as_str(), rule) {
            ("on", _) => self.on = true,
            ("off", _) => self.on = false,
            ("nopass", _) => {
                self.nopass = true;
                self.passwords.clear();
            }
            ("resetpass", _) => {
                self.nopass = false;
                self.passwords.clear();
            }
            ("allkeys" | "~*", _) => self.keys = vec![b"*".to_vec()],
            ("resetkeys", _) => self.keys.clear(),
            ("allchannels" | "&*", _) => self.channels = vec![b"*".to_vec()],
            ("resetchannels", _) => self.channels.clear(),
            ("allcommands" | "+@all", _) => self.all_commands(true),
            ("nocommands" | "-@all", _) => self.all_commands(false),
            ("reset", _) => *self = Self::new(&self.name, table),
            (_, [b'>', password @ ..]) => self.add(hash(password)),
            (_, [b'#', text @ ..]) => self.add(parse_hash(text).ok_or(
                "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters",
            )?),
            (_, [b'<', password @ ..]) => self.forget(&hash(password))?,
            (_, [b'!', text @ ..]) => self.forget(&parse_hash(text).ok_or(
                "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters",
            )?)?,
            (_, [b'~', pattern @ ..]) => {
                if self.keys.iter().any(|pattern| pattern == b"*") {
                    return Err("Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any effect. Try 'resetkeys' to start with an empty list of patterns".into());
                }
                self.keys.push(pattern.to_vec());
            }
            (_, [b'&', pattern @ ..]) => {
                if self.channels.iter().any(|pattern| pattern == b"*") {
                    return Err("Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any effect. Try 'resetchannels' to start with an empty list of channels".into());
                }
                self.channels.push(pattern.to_vec());
            }
            (_, [sign @ (b'+' | b'-'), name @ ..]) => {
                let yes = *sign == b'+';
                if let [b'@', name @ ..] = name {
                    let category = table::category(name).ok_or(UNKNOWN)?;
                    let of_admins: [&[u8]; 2] = [b"admin", b"dangerous"];
                    if of_admins.iter().any(|known| name.eq_ignore_ascii_case(known)) {
                        self.admin = yes;
                    }
                    self.grant(table, yes, |entry| entry.categories & 1 << category != 0);
                } else {
                    let index = table.find(name).ok_or(UNKNOWN)?.index;
                    self.grant(table, yes, |entry| entry.index == index);
                }
                self.rules.retain(|known| known.get(1..) != word.get(1..));
                self.rules.push(word);
            }
            _ => return Err(syntax()),
        }
        self.everything = self.rules == ["+@all"] && self.keys == [b"*"] && self.channels == [b"*"];
        Ok(())
    }

    fn all_commands(&mut self, yes: bool) {
        self.allowed.fill(yes);
        self.admin = yes;
        self.rules = vec![if yes { "+@all" } else { "-@all" }.into()];
    }

    fn grant(&mut self, table: &Table, yes: bool, which: impl Fn(&Entry) -> bool) {
        for (allowed, entry) in self.allowed.iter_mut().zip(table.entries()) {
            if which(entry) {
                *allowed = yes;
            }
        }
    }

    fn add(&mut self, hash: Hash) {
        self.nopass = false;
        if !self.passwords.contains(&hash) {
            self.passwords.push(hash);
        }
    }

    fn forget(&mut self, hash: &Hash) -> Result<(), String> {
        let before = self.passwords.len();
        self.passwords.retain(|known| known != hash);
        if self.passwords.len() == before {
            return Err(
                "The password you are trying to remove from the user does not exist".into(),
            );
        }
        Ok(())
    }

    /// Returns its passwords, as hashes.
    #[must_use]
    pub fn hashes(&self) -> Vec<String> {
        self.passwords.iter().map(hex).collect()
    }

    /// Returns its rules on commands, as `ACL GETUSER` replies them.
    #[must_use]
    pub fn commands(&self) -> String {
        self.rules.join(" ")
    }

    fn patterns(sign: char, patterns: &[Vec<u8>]) -> String {
        let each = patterns
            .iter()
            .map(|pattern| format!("{sign}{}", String::from_utf8_lossy(pattern)));
        each.collect::<Vec<_>>().join(" ")
    }

    /// Returns its patterns of keys.
    #[must_use]
    pub fn key_patterns(&self) -> String {
        Self::patterns('~', &self.keys)
    }

    /// Returns its patterns of channels.
    #[must_use]
    pub fn channel_patterns(&self) -> String {
        Self::patterns('&', &self.channels)
    }

    /// Returns its line in `ACL LIST`.
    #[must_use]
    pub fn line(&self) -> String {
        let mut words = vec![
            "user".into(),
            self.name.clone(),
            if self.on { "on" } else { "off" }.into(),
        ];
        words.extend(self.nopass.then(|| "nopass".to_owned()));
        words.extend(self.hashes().iter().map(|hash| format!("#{hash}")));
        words.extend(Some(self.key_patterns()).filter(|keys| !keys.is_empty()));
        words.push(match self.channel_patterns().as_str() {
            "" => "resetchannels".into(),
            "&*" => "&*".into(),
            channels => format!("resetchannels {channels}"),
        });
        words.push(self.commands());
        words.join(" ")
    }
}

/// All users.
#[derive(Debug)]
pub struct Users {
    by_name: RwLock<BTreeMap<String, Arc<User>>>,
    /// Changes with every change of a user.
    generation: AtomicU64,
}

impl Users {
    /// Returns users with the default user alone, which may execute every command. It has this
    /// password, unless that is empty.
    #[must_use]
    pub fn new(table: &Table, password: &str) -> Self {
        let users = Self {
            by_name: RwLock::default(),
            generation: AtomicU64::new(1),
        };
        // These rules are valid.
        let _ = users.set(
            DEFAULT.as_bytes(),
            &[b"on", b"+@all", b"~*", b"&*", b"nopass"],
            table,
        );
        users.require(password, table);
        users
    }

    /// Gives the default user this password alone, or none.
    pub fn require(&self, password: &str, table: &Table) {
        let rule = [b">", password.as_bytes()].concat();
        let rules: [&[u8]; 2] = if password.is_empty() {
            [b"resetpass", b"nopass"]
        } else {
            [b"resetpass", &rule]
        };
        // These rules are valid.
        let _ = self.set(DEFAULT.as_bytes(), &rules, table);
    }

    /// Returns the user of that name.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<Arc<User>> {
        let name = std::str::from_utf8(name).ok()?;
        let users = self.by_name.read();
        let users = users.unwrap_or_else(PoisonError::into_inner);
        users.get(name).cloned()
    }

    /// Returns all users, by name.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<User>> {
        let users = self.by_name.read();
        let users = users.unwrap_or_else(PoisonError::into_inner);
        users.values().cloned().collect()
    }

    /// Returns a number that changes with every change of a user.
    #[must_use]
    pub fn generation(&self) -> u64 {
        // ORDERING: Acquire; pairs with the Release of `changed`: a thread that sees the number
        // sees the change.
        self.generation.load(Ordering::Acquire)
    }

    fn changed(&self) {
        // ORDERING: Release; pairs with the Acquire of `generation`.
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Creates or changes a user, with all rules or none.
    ///
    /// # Errors
    /// The text of the error, worded as Redis does.
    pub fn set(&self, name: &[u8], rules: &[&[u8]], table: &Table) -> Result<(), String> {
        let name = std::str::from_utf8(name)
            .ok()
            .filter(|name| !name.contains(|c: char| c.is_whitespace() || c == '\0'))
            .ok_or("ERR Usernames can't contain spaces or null characters")?;
        let users = self.by_name.write();
        let mut users = users.unwrap_or_else(PoisonError::into_inner);
        let known = users.get(name).map(|user| User::clone(user));
        let mut user = known.unwrap_or_else(|| User::new(name, table));
        for rule in rules {
            user.apply(rule, table).map_err(|reason| {
                let rule = String::from_utf8_lossy(rule);
                format!("ERR Error in ACL SETUSER modifier '{rule}': {reason}")
            })?;
        }
        users.insert(name.to_owned(), Arc::new(user));
        self.changed();
        Ok(())
    }

    /// Returns all users as lines of a file, which [`replace`](Self::replace) reads.
    ///
    /// # Errors
    /// The error reply: a pattern cannot be written in a line of words.
    pub fn to_lines(&self) -> Result<String, String> {
        let mut lines = String::new();
        for user in self.all() {
            let patterns = user.keys.iter().chain(&user.channels);
            for pattern in patterns {
                let text = std::str::from_utf8(pattern);
                if !text.is_ok_and(|text| !text.contains(char::is_whitespace) && !text.is_empty()) {
                    return Err(format!(
                        "ERR user {:?} has the pattern \"{}\", which a file of users cannot have: it is empty, has a space or is no UTF-8; nothing was saved",
                        user.name,
                        pattern.escape_ascii()
                    ));
                }
            }
            lines += &user.line();
            lines.push('\n');
        }
        Ok(lines)
    }

    /// Replaces all users by those in the lines of a file, all or none. Without a line of its own
    /// the default user may do everything, without a password.
    ///
    /// # Errors
    /// What is wrong, with the number of the line.
    pub fn replace(&self, text: &str, table: &Table) -> Result<(), String> {
        let new = Self::new(table, "");
        let mut seen = BTreeSet::new();
        for (number, line) in text.lines().enumerate() {
            let words: Vec<&[u8]> = line.split_whitespace().map(str::as_bytes).collect();
            let wrong = |reason: &str| format!("line {}: {reason}", number + 1);
            let (name, rules) = match words.as_slice() {
                [] => continue,
                [word, ..] if word.starts_with(b"#") => continue,
                [b"user", name, rules @ ..] => (*name, rules),
                _ => return Err(wrong("expected `user`, a name, and rules")),
            };
            if !seen.insert(name) {
                return Err(wrong("there is a line for that user already"));
            }
            // A line says all of what a user may.
            let all = [&[&b"reset"[..]], rules].concat();
            new.set(name, &all, table)
                .map_err(|reason| wrong(reason.trim_start_matches("ERR ")))?;
        }
        let by_name = new.by_name.into_inner();
        let users = self.by_name.write();
        *users.unwrap_or_else(PoisonError::into_inner) =
            by_name.unwrap_or_else(PoisonError::into_inner);
        self.changed();
        Ok(())
    }

    /// Deletes a user. Returns true if it existed.
    pub fn delete(&self, name: &[u8]) -> bool {
        let Ok(name) = std::str::from_utf8(name) else {
            return false;
        };
        let users = self.by_name.write();
        let gone = users
            .unwrap_or_else(PoisonError::into_inner)
            .remove(name)
            .is_some();
        self.changed();
        gone
    }

    /// Returns the names of all categories.
    #[must_use]
    pub fn categories() -> &'static [&'static str] {
        &CATEGORIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_say_what_a_user_may() {
        let table = crate::commands::table();
        let users = Users::new(&table, "secret");
        let default = users.get(b"default").unwrap();
        assert!(default.everything && default.knows(b"secret") && !default.knows(b""));
        let rules: [&[u8]; 7] = [
            b"on",
            b">pw",
            b"~a*",
            b"&ch*",
            b"+@string",
            b"-set",
            b"+ping",
        ];
        users.set(b"bob", &rules, &table).unwrap();
        let bob = users.get(b"bob").unwrap();
        let may = |name: &[u8]| bob.may(table.find(name).unwrap());
        assert!(may(b"get") && may(b"ping") && !may(b"set") && !may(b"config"));
        assert!(bob.may_touch(b"abc") && !bob.may_touch(b"b"));
        assert!(bob.may_hear(b"ch1", false) && !bob.may_hear(b"x", false));
        assert!(bob.may_hear(b"ch*", true) && !bob.may_hear(b"c*", true));
        assert!(bob.knows(b"pw") && !bob.knows(b"secret"));
        assert_eq!(
            bob.line(),
            format!(
                "user bob on #{} ~a* resetchannels &ch* -@all +@string -set +ping",
                bob.hashes()[0]
            )
        );
        users.set(b"bob", &[b"<pw"], &table).unwrap();
        assert!(!users.get(b"bob").unwrap().knows(b"pw"));
    }

    #[test]
    fn what_is_saved_is_loaded_again() {
        let table = crate::commands::table();
        let users = Users::new(&table, "secret");
        let rules: [&[u8]; 6] = [b"on", b">pw", b"~a*", b"&ch*", b"+@string", b"-set"];
        users.set(b"bob", &rules, &table).unwrap();
        users.set(b"eve", &[b"off"], &table).unwrap();
        let lines = users.to_lines().unwrap();
        let again = Users::new(&table, "");
        again.set(b"gone", &[b"on"], &table).unwrap();
        again
            .replace(&format!("# ours\n\n{lines}"), &table)
            .unwrap();
        assert_eq!(again.all(), users.all());
        assert_eq!(again.to_lines().unwrap(), lines);
        for (text, told) in [
            ("user bob on\nuser bob off\n", "line 2: there is"),
            ("user bob on +nothing\n", "line 1: Error in ACL"),
            ("bob on\n", "line 1: expected"),
        ] {
            let error = again.replace(text, &table).unwrap_err();
            assert!(error.starts_with(told), "{error}");
            assert_eq!(again.to_lines().unwrap(), lines);
        }
        users.set(b"bob", &[b"~with space"], &table).unwrap();
        let error = users.to_lines().unwrap_err();
        assert!(
            error.contains("\"bob\"") && error.contains("with space"),
            "{error}"
        );
    }

    #[test]
    fn a_wrong_rule_changes_nothing() {
        let table = crate::commands::table();
        let users = Users::new(&table, "");
        for wrong in ["foo", "+foo", "+@foo", "<zz", "#zz", "!zz"] {
            let text = users.set(b"bob", &[b"on", wrong.as_bytes()], &table);
            let text = text.unwrap_err();
            assert!(
                text.starts_with("ERR Error in ACL SETUSER modifier"),
                "{text}"
            );
            assert!(users.get(b"bob").is_none());
        }
        assert!(users.set(b"a b", &[], &table).is_err());
        assert!(!users.delete(b"bob") && users.get(b"default").unwrap().nopass);
    }
}
