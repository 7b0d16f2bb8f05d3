//! Programs of several connections over few keys in two databases: all types meet, with all that
//! moves keys between names and databases, under transactions that watch what others change.

use super::{Words, hashes, lists, multi, one, rarely, sets, sort, sorted_sets, strings, words};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

/// Connections of a program, which go on one after the other.
pub const CONNECTIONS: usize = 3;
/// Commands of a program, besides those that look at what is left.
const COMMANDS: usize = 150;

/// The keys of a program are the first of these. Some begin like others, one is the immediate
/// successor of another, and one is empty.
const KEYS: [&[u8]; 6] = [b"a", b"a\0", b"ab", b"", b"\xff", b"b"];
/// Fields, members and elements. Two are keys, to which patterns of `SORT` lead.
const NAMES: [&str; 5] = ["n0", "n1", "n10", "a", "ab"];
const DATABASES: [&str; 2] = ["0", "1"];

/// The cursor of an iteration: the step is a whole one, from 0 to its end.
pub const WHOLE: &[u8] = b"<whole>";
/// A word that stands for the last payload of a `DUMP`, which is each server's own.
pub const PAYLOAD: &[u8] = b"<payload>";
/// A step that lets what expires in a millisecond expire.
pub const PAUSE: &[u8] = b"<pause>";

/// A command, and the connection that it is on.
pub type Step = (usize, Words);

/// Commands in their order.
#[derive(Clone, Debug)]
pub struct Program {
    /// Connections speak RESP3.
    pub resp3: bool,
    pub steps: Vec<Step>,
}

/// What the commands of one program have in common.
struct Few {
    keys: usize,
    /// Keys expire, or have when they are put: what `DBSIZE` counts then is each server's own.
    expires: bool,
    /// Families of commands: strings, hashes, lists, sets, sorted sets.
    families: Vec<u32>,
    /// All members of sorted sets have the same score, so that they are ordered by name.
    same_scores: bool,
}

impl Few {
    fn new(rng: &mut impl Rng) -> Self {
        let all = 0..5;
        let mut families: Vec<u32> = all.clone().filter(|_| !rarely(rng, 3)).collect();
        if families.is_empty() {
            families.extend(all);
        }
        Self {
            keys: rng.random_range(3..=KEYS.len()),
            expires: rarely(rng, 2),
            families,
            same_scores: rarely(rng, 4),
        }
    }

    fn key(&self, rng: &mut impl Rng) -> Vec<u8> {
        KEYS[rng.random_range(0..self.keys)].into()
    }

    fn keys(&self, rng: &mut impl Rng, most: usize) -> Words {
        (0..rng.random_range(1..=most))
            .map(|_| self.key(rng))
            .collect()
    }

    /// Returns a command on this program's keys and names, instead of those of the families.
    fn on_few(&self, mut command: Words) -> Words {
        for word in &mut command[1..] {
            match word[..] {
                // A key: `s3`, `h0`.
                [b's' | b'h' | b'e' | b'z' | b'l' | b'x', digit @ b'0'..=b'9'] => {
                    *word = KEYS[usize::from(digit - b'0') % self.keys].into();
                }
                [b'n', digit @ b'0'..=b'9'] => {
                    *word = NAMES[usize::from(digit - b'0') % NAMES.len()].into();
                }
                _ => {}
            }
        }
        command
    }

    /// Returns an iteration in small steps, some of which give nothing.
    fn iteration(&self, rng: &mut impl Rng) -> Words {
        let name = one(rng, &["scan", "scan", "hscan", "sscan", "zscan"]);
        let mut command = words(&[name]);
        if name != "scan" {
            command.push(self.key(rng));
        }
        command.push(WHOLE.to_vec());
        command.extend([b"count".to_vec(), one(rng, &["1", "1", "2", "3"]).into()]);
        if !rarely(rng, 3) {
            let pattern = one(
                rng,
                &["a", "a*", "ab", "b", "*b", "?", "", "n1*", "*1", "c", "*"],
            );
            command.extend([b"match".to_vec(), pattern.into()]);
        }
        if name == "scan" && rarely(rng, 3) {
            let kind = one(rng, &["string", "hash", "set", "zset", "list"]);
            command.extend([b"type".to_vec(), kind.into()]);
        }
        command
    }

    fn expiry(&self, rng: &mut impl Rng) -> Words {
        let (name, times) = match rng.random_range(0..4) {
            0 => ("expire", ["100000", "200000", "-1", "0"]),
            1 => ("pexpire", ["100000000", "200000000", "-1", "0"]),
            2 => ("expireat", ["4102444800", "4102444900", "1", "4102444800"]),
            _ => (
                "pexpireat",
                ["4102444800000", "4102444800001", "1", "4102444800000"],
            ),
        };
        let mut command = vec![name.into(), self.key(rng), one(rng, &times).into()];
        if rarely(rng, 3) {
            // The order of two relative times may depend on a millisecond.
            let options = if name.ends_with("at") {
                &["nx", "xx", "gt", "lt"][..]
            } else {
                &["nx", "xx"]
            };
            command.push(one(rng, options).into());
        }
        command
    }

    /// Returns a `SORT` of what has one order. Patterns lead to keys, and to fields of hashes.
    fn sort(&self, rng: &mut impl Rng) -> Words {
        let mut command = vec![b"sort".to_vec(), self.key(rng), b"alpha".to_vec()];
        if rarely(rng, 2) {
            command.push(one(rng, &["asc", "desc"]).into());
        }
        if rarely(rng, 3) {
            command.extend([b"limit".to_vec(), one(rng, &["0", "1"]).into(), b"2".into()]);
        }
        while rarely(rng, 2) {
            let pattern = one(rng, &["#", "*", "*->n1", "*b", "a", "a->n0"]);
            command.extend([b"get".to_vec(), pattern.into()]);
        }
        if rarely(rng, 2) {
            command.extend([b"store".to_vec(), self.key(rng)]);
        }
        command
    }

    /// Returns a command that takes from keys, and waits a moment where there is nothing.
    fn blocking(&self, rng: &mut impl Rng) -> Words {
        const MOMENT: &[u8] = b"0.001";
        let end = |rng: &mut _| one(rng, &["left", "right"]).into();
        let some = self.keys(rng, 3);
        let mut command = Words::new();
        match rng.random_range(0..5) {
            0 | 1 => {
                command.push(one(rng, &["blpop", "brpop", "bzpopmin", "bzpopmax"]).into());
                command.extend(some);
                command.push(MOMENT.into());
            }
            2 => {
                let of_lists = rarely(rng, 2);
                command.push(if of_lists { "blmpop" } else { "bzmpop" }.into());
                command.extend([MOMENT.into(), some.len().to_string().into_bytes()]);
                command.extend(some);
                command.push(if of_lists {
                    end(rng)
                } else {
                    one(rng, &["min", "max"]).into()
                });
            }
            3 => {
                command.push("blmove".into());
                command.extend([self.key(rng), self.key(rng), end(rng), end(rng)]);
                command.push(MOMENT.into());
            }
            _ => {
                command.push("brpoplpush".into());
                command.extend([self.key(rng), self.key(rng), MOMENT.into()]);
            }
        }
        command
    }

    /// Returns a command on keys of any type, or on databases.
    fn on_keys(&self, rng: &mut impl Rng) -> Words {
        let database = |rng: &mut _| -> Vec<u8> { one(rng, &DATABASES).into() };
        match rng.random_range(0..40) {
            0..5 => self.expiry(rng),
            5 => vec![b"persist".to_vec(), self.key(rng)],
            6..10 => {
                let names = ["type", "ttl", "pttl", "expiretime", "pexpiretime", "object"];
                let name = one(rng, &names);
                let mut command = words(&[name]);
                if name == "object" {
                    command.push(b"idletime".to_vec());
                }
                command.push(self.key(rng));
                command
            }
            10..14 => {
                let name = one(rng, &["exists", "touch", "del", "unlink"]);
                let mut command = words(&[name]);
                command.extend(self.keys(rng, 3));
                command
            }
            14..18 => {
                let name = one(rng, &["rename", "renamenx"]);
                vec![name.into(), self.key(rng), self.key(rng)]
            }
            18..22 => {
                let mut command = vec![b"copy".to_vec(), self.key(rng), self.key(rng)];
                if rarely(rng, 2) {
                    command.extend([b"db".to_vec(), database(rng)]);
                }
                if !rarely(rng, 3) {
                    command.push(b"replace".to_vec());
                }
                command
            }
            22..25 => vec![b"move".to_vec(), self.key(rng), database(rng)],
            25 | 26 => vec![b"swapdb".to_vec(), database(rng), database(rng)],
            27..29 => vec![b"select".to_vec(), database(rng)],
            29 if rarely(rng, 4) => vec![one(rng, &["flushdb", "flushall"]).into()],
            29 => words(&["keys", one(rng, &["*", "a*", "a", "?", ""])]),
            30 if self.expires => words(&["keys", "*"]),
            30 => words(&["dbsize"]),
            31 | 32 => vec![b"dump".to_vec(), self.key(rng)],
            33 | 34 => {
                let mut command = vec![b"restore".to_vec(), self.key(rng)];
                let absolute = rarely(rng, 2);
                let times = if absolute {
                    ["0", "4102444800000", "1"]
                } else {
                    ["0", "100000000", "0"]
                };
                command.extend([one(rng, &times).into(), PAYLOAD.into()]);
                if !rarely(rng, 3) {
                    command.push(b"replace".to_vec());
                }
                if absolute {
                    command.push(b"absttl".to_vec());
                }
                command
            }
            35 if rarely(rng, 4) => words(&["reset"]),
            35 => self.sort(rng),
            _ => {
                let names = ["get", "llen", "hlen", "scard", "zcard", "strlen", "lrange"];
                let name = one(rng, &names);
                let mut command = vec![name.into(), self.key(rng)];
                if name == "lrange" {
                    command.extend([b"0".to_vec(), b"-1".to_vec()]);
                }
                command
            }
        }
    }

    fn of_a_family(&self, rng: &mut impl Rng) -> Words {
        match self.families[rng.random_range(0..self.families.len())] {
            0 => strings::command(rng),
            1 => hashes::command(rng),
            2 => lists::command(rng),
            3 => sets::command(rng),
            _ if self.same_scores => sorted_sets::by_member(rng),
            _ => sorted_sets::command(rng).0,
        }
    }

    fn command(&self, rng: &mut impl Rng) -> Words {
        let command = match rng.random_range(0..40) {
            0..12 => return self.on_keys(rng),
            12 => return self.iteration(rng),
            13 => return self.blocking(rng),
            14..20 => multi::command(rng),
            20 => sort::command(rng).0,
            21 => {
                let watched = self.keys(rng, 2);
                return [b"watch".to_vec()].into_iter().chain(watched).collect();
            }
            _ => self.of_a_family(rng),
        };
        self.on_few(command)
    }

    /// Whether both servers do the same with it, at whatever time.
    fn is_certain(&self, command: &Words) -> bool {
        let name = command[0].as_slice();
        let is_random = [&b"hrandfield"[..], b"srandmember", b"zrandmember", b"spop"];
        let is_by_name = name.windows(3).any(|part| part == b"lex")
            || command[1..].iter().any(|word| word == b"bylex");
        let has_expired = command[1..]
            .iter()
            .any(|word| word == b"1" || word == b"-1");
        let sets_expired = [&b"set"[..], b"getex", b"restore"].contains(&name) && has_expired;
        !is_random.contains(&name)
            && !crate::against_redis::expires_meanwhile(command)
            && (self.expires || !sets_expired)
            && (self.same_scores || !is_by_name)
    }

    /// Returns commands that show all that the selected database has.
    fn looks(&self) -> Vec<Words> {
        let of = |key: &[u8]| {
            let key = key.to_vec();
            let on = |name: &str, more: &[&str]| {
                let more = more.iter().map(|word| word.as_bytes().to_vec());
                [name.into(), key.clone()].into_iter().chain(more).collect()
            };
            [
                on("type", &[]),
                on("pexpiretime", &[]),
                on("get", &[]),
                on("hgetall", &[]),
                on("lrange", &["0", "-1"]),
                on("smembers", &[]),
                on("zrange", &["0", "-1", "withscores"]),
            ]
        };
        let each = KEYS[..self.keys].iter().flat_map(|key| of(key));
        [words(&["keys", "*"])].into_iter().chain(each).collect()
    }
}

/// Returns the program of a seed.
pub fn program(seed: u64) -> Program {
    let mut rng = SmallRng::seed_from_u64(seed);
    let few = Few::new(&mut rng);
    let mut steps: Vec<Step> = Vec::new();
    let mut connection = 0;
    while steps.len() < COMMANDS {
        if rarely(&mut rng, 2) {
            connection = rng.random_range(0..CONNECTIONS);
        }
        if few.expires && rarely(&mut rng, 60) {
            let expire = vec![b"pexpire".to_vec(), few.key(&mut rng), b"1".to_vec()];
            let pause = vec![PAUSE.to_vec()];
            steps.extend([words(&["discard"]), expire, pause].map(|words| (connection, words)));
            continue;
        }
        if rarely(&mut rng, 12) {
            // A server takes those of a pipeline together.
            for _ in 0..rng.random_range(2..5) {
                let mut command = vec![b"get".to_vec(), few.key(&mut rng)];
                if rarely(&mut rng, 2) {
                    command[0] = b"set".to_vec();
                    command.push(one(&mut rng, &["1", "a", "b"]).into());
                }
                steps.push((connection, command));
            }
            continue;
        }
        let command = few.command(&mut rng);
        if few.is_certain(&command) {
            steps.push((connection, command));
        }
    }
    steps.push((0, words(&["discard"])));
    for database in DATABASES {
        let looks = [words(&["select", database])]
            .into_iter()
            .chain(few.looks());
        steps.extend(looks.map(|words| (0, words)));
    }
    Program {
        resp3: rarely(&mut rng, 4),
        steps,
    }
}
