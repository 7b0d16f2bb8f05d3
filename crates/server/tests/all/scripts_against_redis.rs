//! Random small scripts go to a real `redis-server` and to this server. Their replies are the same,
//! byte for byte.

use crate::against_redis::{expires_meanwhile, same};
use crate::common::{compare, directory};
use crate::generate::{self, Words, one, rarely};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_server::Local;
use bristlecone_store::{Store, StoreOptions};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt};

/// A server's databases in this program, with the path that a client's commands take.
struct Ours {
    local: Local,
    _dir: tempfile::TempDir,
}

impl Ours {
    fn new() -> Self {
        let dir = directory();
        let pool = Pool::<Auto>::create(&dir.path().join("pool"), &PoolOptions::default()).unwrap();
        let store = Store::create(&pool, "s", &StoreOptions::default()).unwrap();
        Self {
            local: Local::open(store).unwrap(),
            _dir: dir,
        }
    }
}

impl compare::Mine for Ours {
    fn call(&mut self, words: &[Vec<u8>]) -> Vec<u8> {
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        self.local.execute(&words)
    }

    fn settle(&mut self) {
        self.local.settle().unwrap();
    }
}

/// Returns a command on data whose reply has one right form.
fn command(rng: &mut SmallRng) -> Words {
    loop {
        let command = match rng.random_range(0..8) {
            0 => generate::keys::command(rng),
            1 => generate::keys::collection(rng),
            2 => generate::hashes::command(rng),
            3 => generate::lists::command(rng),
            4 => generate::sets::command(rng),
            5 => generate::sorted_sets::command(rng).0,
            _ => generate::strings::command(rng),
        };
        let name = String::from_utf8_lossy(&command[0]).to_lowercase();
        let varies = [
            "scan",
            "sscan",
            "hscan",
            "zscan",
            "keys",
            "randomkey",
            "spop",
            "srandmember",
            "hrandfield",
            "zrandmember",
            "smembers",
            "sunion",
            "sinter",
            "sdiff",
            "hgetall",
            "hkeys",
            "hvals",
            "object",
            "ttl",
            "pttl",
            "expiretime",
            "pexpiretime",
            "dump",
            "restore",
            "sort",
            "sort_ro",
            "debug",
            "blpop",
            "brpop",
            "blmove",
            "brpoplpush",
            "blmpop",
            "bzmpop",
            "bzpopmin",
            "bzpopmax",
            "swapdb",
            "move",
            "touch",
            "flushall",
        ];
        if !varies.contains(&name.as_str()) && !expires_meanwhile(&command) {
            return command;
        }
    }
}

fn eval(text: &str, keys: &[&[u8]], args: &[Vec<u8>]) -> Words {
    let mut words = generate::words(&["eval", text, &keys.len().to_string()]);
    words.extend(keys.iter().map(|key| key.to_vec()));
    words.extend(args.iter().cloned());
    words
}

/// Returns a value as a Lua expression.
fn expression(rng: &mut impl Rng, depth: u32) -> String {
    match rng.random_range(0..if depth == 0 { 8 } else { 10 }) {
        0 => rng.random_range(-5..100_000).to_string(),
        1 => format!("{}", f64::from(rng.random_range(-9999..9999)) / 16.0),
        2 => one(
            rng,
            &[
                "true",
                "false",
                "nil",
                "cjson.null",
                "1e300",
                "-2^53",
                "2^31",
                "1e15",
                "0.1",
            ],
        )
        .to_owned(),
        3..8 => format!(
            "'{}'",
            one(
                rng,
                &[
                    "",
                    "a",
                    "12",
                    "-1.5",
                    "foo bar",
                    "x/y\\n\\\"",
                    "\\1\\127\\200"
                ]
            )
        ),
        8 => {
            let n = rng.random_range(0..5);
            let parts: Vec<String> = (0..n).map(|_| expression(rng, depth - 1)).collect();
            format!("{{{}}}", parts.join(", "))
        }
        _ => format!(
            "{{{}={}}}",
            one(rng, &["a", "b"]),
            expression(rng, depth - 1)
        ),
    }
}

fn library(rng: &mut impl Rng) -> String {
    let (a, b) = (expression(rng, 3), expression(rng, 1));
    let call = match rng.random_range(0..14) {
        0..3 => format!("cjson.encode({a})"),
        3 => format!("cjson.encode(cjson.decode(cjson.encode({a})))"),
        4 => {
            let text = one(
                rng,
                &[
                    "",
                    "[",
                    "[1,]",
                    "{\"a\":1}",
                    "{\"a\" 1}",
                    "{a:1}",
                    "[1,2,[3]]",
                    "nul",
                    "tru",
                    "\"\\\\x\"",
                    "\"\\\\u12\"",
                    "1 2",
                    "-",
                    "1e5",
                    "[nan]",
                    "{\"a\":}",
                    " [ ] ",
                    "\"\\\\ud800\"",
                    "0x10",
                    "01",
                    "inf",
                ],
            );
            format!("cjson.encode(cjson.decode('{text}'))")
        }
        5..7 => format!("cmsgpack.pack({a}, {b})"),
        7 => format!("cjson.encode({{cmsgpack.unpack(cmsgpack.pack({a}, {b}))}})"),
        8 => format!(
            "cmsgpack.unpack('{}')",
            one(
                rng,
                &[
                    "\\192",
                    "\\147\\1",
                    "\\255\\127",
                    "\\203\\0",
                    "\\196\\1x",
                    "\\212\\1x"
                ]
            )
        ),
        9 | 10 => {
            let format = one(
                rng,
                &[
                    "bB", ">hH", "<lL", "i3I5", "!8bd", "fd", "sx", "c3", "c0", "q", "i40", "!3i4",
                    ">!bi4",
                ],
            );
            let (n, m) = (rng.random_range(-300..300), rng.random_range(0..70_000));
            format!("struct.pack('{format}', {n}, {m})")
        }
        11 => {
            let format = one(
                rng,
                &["bB", ">h", "<I4", "s", "c2", "bc0", "d", ">f", "!4bi4"],
            );
            format!("table.concat({{struct.unpack('{format}', '\\1ab\\0\\255cdefgh')}}, ' ')")
        }
        12 => {
            let f = one(
                rng,
                &[
                    "band", "bor", "bxor", "lshift", "rshift", "arshift", "rol", "ror",
                ],
            );
            let (n, m) = (
                rng.random_range(-5_000_000_000i64..5_000_000_000),
                rng.random_range(-3..40),
            );
            format!("bit.{f}({n}, {m})")
        }
        _ => {
            let f = one(rng, &["bnot", "tobit", "bswap", "tohex"]);
            format!(
                "bit.{f}({})",
                rng.random_range(-5_000_000_000i64..5_000_000_000)
            )
        }
    };
    format!("return {call}")
}

/// Returns the key of a command, where it has one.
fn key_of(words: &Words) -> &[u8] {
    words.get(1).map_or(b"s1", Vec::as_slice)
}

fn script(rng: &mut SmallRng) -> Words {
    let (first, second) = (command(rng), command(rng));
    match rng.random_range(0..20) {
        // One command, with its keys unnamed.
        0..4 => eval("return redis.call(unpack(ARGV))", &[], &first),
        4..6 => eval(
            "return redis.pcall(unpack(ARGV))",
            &[key_of(&first)],
            &first,
        ),
        // Two of them, and what was before an error stays.
        6..9 => {
            let text = "local n = tonumber(ARGV[1]) local a, b = {}, {} \
                        for i = 2, n + 1 do a[#a + 1] = ARGV[i] end for i = n + 2, #ARGV do b[#b + 1] = ARGV[i] end \
                        local one = redis.call(unpack(a)) return {one, redis.pcall(unpack(b)), redis.call('dbsize')}";
            let mut args = vec![first.len().to_string().into_bytes()];
            args.extend(first.iter().chain(&second).cloned());
            let keys = [key_of(&first), key_of(&second)];
            eval(text, if rarely(rng, 2) { &keys } else { &[] }, &args)
        }
        9..11 => eval(
            "redis.setresp(3) local r = redis.pcall(unpack(ARGV)) return r",
            &[key_of(&first)],
            &first,
        ),
        11 => {
            let words = one(
                rng,
                &[
                    "return redis.call('select', '1')",
                    "return redis.call('ping', 'x')",
                    "return redis.call('nothing')",
                    "return redis.call('get')",
                    "return redis.pcall('multi')",
                    "return redis.pcall('eval', 'return 1', 0)",
                    "return redis.call('set', KEYS[1], 1, {})",
                    "return x",
                    "y = 1",
                    "error('text')",
                    "error({err='CODE text'})",
                    "error()",
                    "error(12)",
                    "return {1, 2, {3, 'a', nil, 4}}",
                    "return redis.error_reply('no code')",
                    "return redis.error_reply('-CODE text')",
                    "return redis.status_reply('fine')",
                    "return {err='x'}",
                    "return {ok='x'}",
                    "return redis.sha1hex('abc')",
                    "return redis.sha1hex()",
                    "return redis.setresp(4)",
                    "return redis.log()",
                    "return pcall(redis.call, 'nothing')",
                    "local a = nil return a.b",
                    "return 3.999",
                    "return {double=3.5}",
                    "return",
                    "syntax error",
                    "return (",
                    "return 1e20",
                    "return -1e20",
                    "return 0/0",
                    "return redis.pcall()",
                    "return redis.call(nil)",
                    "return tostring(redis.REDIS_VERSION_NUM)",
                    "return redis.acl_check_cmd('set', 'x', '1')",
                    "return redis.acl_check_cmd('nothing')",
                    "return loadstring('return 5')()",
                    "return tostring(_VERSION)",
                    "\n\n  return redis.call('incr', 'e1')",
                    "math.randomseed(7) return {math.random(10), math.random(10)}",
                    "return {redis.call('set', 's1', 'x'), redis.call('incr', 's1')}",
                    "return redis.call('publish', 'c', 'm')",
                    "return string.rep('x', 3)",
                    "return {map={a=1}}",
                    "return {set={a=true}}",
                    "return redis.call('echo', 'x')",
                ],
            );
            eval(words, &[b"s1"], &[])
        }
        12 => generate::words(&["evalsha", &"0".repeat(40), "0"]),
        13 => {
            let mut words = eval("return redis.call(unpack(ARGV))", &[key_of(&first)], &first);
            words[0] = b"eval_ro".to_vec();
            words
        }
        14 => {
            let flags = one(
                rng,
                &[
                    "flags=no-writes",
                    "flags=",
                    "flags=allow-oom",
                    "flags=bad",
                    "what=x",
                    "",
                ],
            );
            eval(
                &format!("#!lua {flags}\nreturn redis.call(unpack(ARGV))"),
                &[key_of(&first)],
                &first,
            )
        }
        15 => generate::words(
            one(
                rng,
                &[
                    "eval return 0",
                    "eval x -1",
                    "eval x 5",
                    "eval x y",
                    "script exists",
                    "script load (",
                    "script x",
                ],
            )
            .split(' ')
            .collect::<Vec<_>>()
            .as_slice(),
        ),
        _ => eval(&library(rng), &[], &[]),
    }
}

/// Returns a reply with 0 for each string -0.
fn without_minus(reply: &[u8]) -> Vec<u8> {
    let (from, to) = (b"$2\r\n-0\r\n", b"$1\r\n0\r\n");
    let (mut out, mut rest) = (Vec::new(), reply);
    while let Some(at) = rest.windows(from.len()).position(|bytes| bytes == from) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(to);
        rest = &rest[at + from.len()..];
    }
    out.extend_from_slice(rest);
    out
}

/// Returns true if both replies are right. Errors of libraries in other words are, and 0 for -0, a
/// score that we do not keep.
fn same_scripts(words: &Words, theirs: &[u8], ours: &[u8]) -> bool {
    let (theirs, ours) = (&without_minus(theirs)[..], &without_minus(ours)[..]);
    let text = words.get(1).map_or(&[][..], Vec::as_slice);
    let has = |what: &str| String::from_utf8_lossy(text).contains(what);
    let both_fail = theirs.starts_with(b"-") && ours.starts_with(b"-");
    let of_library = has("cjson") || has("cmsgpack") || has("struct.") || has("bit.");
    theirs == ours || both_fail && of_library || same(words, theirs, ours)
}

fn compare_all(resp3: bool, count: u64, seed: u64) {
    compare::replies_by(
        Ours::new,
        resp3,
        count,
        seed,
        |rng| vec![script(rng)],
        same_scripts,
    );
}

#[test]
fn scripts_reply_as_those_of_redis() {
    compare_all(false, 100_000, 1);
}

#[test]
fn scripts_reply_in_resp3_as_those_of_redis() {
    compare_all(true, 20_000, 2);
}

/// A comparison is worth nothing if nearly all scripts fail.
#[test]
fn many_scripts_succeed() {
    use compare::Mine;
    use rand::SeedableRng;
    let (mut ours, mut rng) = (Ours::new(), SmallRng::seed_from_u64(3));
    let good = (0..2000).filter(|_| !ours.call(&script(&mut rng)).starts_with(b"-"));
    assert!(good.count() > 1000);
}
