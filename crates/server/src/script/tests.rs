//! Scripts over a host that echoes.

use super::*;
use crate::error::{CommandError, Outcome};
use crate::reply::{Out, Protocol};
use std::thread;
use std::time::Duration;

/// A host that echoes the words of a command, or fails.
struct Echo;

impl Host for Echo {
    fn call(
        &mut self,
        args: &[&[u8]],
        protocol: Protocol,
        _: usize,
        reply: &mut Vec<u8>,
    ) -> Outcome {
        let mut out = Out::new(reply, protocol);
        match args {
            [b"fail"] => out.error("ERR it failed"),
            [b"null"] => out.null(),
            [b"map"] => {
                out.map(1);
                out.bulk(b"k");
                out.double_text("1.5");
            }
            [b"long"] => return Err(CommandError::Long),
            [b"ok"] => out.ok(),
            _ => {
                out.array(args.len());
                args.iter().for_each(|arg| out.bulk(arg));
            }
        }
        Ok(())
    }

    fn may(&self, args: &[&[u8]]) -> Option<bool> {
        (args[0] != b"none").then_some(args[0] != b"denied")
    }
}

/// Returns the reply of a script in RESP2, with spaces for line ends.
fn run(scripts: &Scripts, text: &str, args: &[&str]) -> String {
    let script = scripts.of_text(text.as_bytes()).unwrap();
    let args: Vec<&[u8]> = args.iter().map(|arg| arg.as_bytes()).collect();
    let mut reply = Vec::new();
    let mut out = Out::new(&mut reply, Protocol::Resp2);
    let run =
        |engine: &mut Engine| match engine.run(&script, (&[], &args), false, &mut Echo).unwrap() {
            Ok(value) => replies::write(&value, engine.is_resp3(), &mut out).unwrap(),
            Err(text) => out.error(&text),
        };
    scripts.with_engine(false, run).unwrap();
    let text = String::from_utf8_lossy(&reply).replace("\r\n", " ");
    text.trim_end().to_owned()
}

/// Returns the string that a script returns, or the start of its error without the SHA-1.
fn string(scripts: &Scripts, text: &str) -> String {
    let reply = run(scripts, text, &[]);
    match reply.split_once(" script: ") {
        Some((error, _)) => error.to_owned(),
        None => reply
            .split_once(' ')
            .map_or(reply.clone(), |(_, text)| text.to_owned()),
    }
}

#[test]
fn values_become_replies_and_replies_values() {
    let scripts = Scripts::default();
    for (text, reply) in [
        ("return 1", ":1"),
        ("return -3.99", ":-3"),
        ("return 'a'", "$1 a"),
        ("return true", ":1"),
        ("return false", "$-1"),
        ("return nil", "$-1"),
        ("return", "$-1"),
        ("return {1, 'a', {2}, true}", "*4 :1 $1 a *1 :2 :1"),
        ("return {1, nil, 3}", "*1 :1"),
        ("return {ok='fine'}", "+fine"),
        ("return {err='My error'}", "-My error"),
        ("return {double=1.5}", "$3 1.5"),
        ("return redis.status_reply('S')", "+S"),
        ("return redis.error_reply('bad')", "-ERR bad"),
        ("return redis.error_reply('BAD luck')", "-BAD luck"),
        ("return redis.error_reply('-CODE bad')", "-CODE bad"),
        ("return redis.call('ok')", "+OK"),
        ("return redis.call('ok').ok", "$2 OK"),
        ("return redis.call('null') == false", ":1"),
        ("redis.setresp(3) return redis.call('null') == nil", ":1"),
        (
            "redis.setresp(3) return redis.call('map').map.k.double == 1.5",
            ":1",
        ),
        ("return redis.call('map')", "*2 $1 k $3 1.5"),
        (
            "return redis.call('a', 1, 1.5, 1e20)",
            "*4 $1 a $1 1 $3 1.5 $5 1e+20",
        ),
        ("return redis.pcall('fail').err", "$13 ERR it failed"),
        ("return redis.pcall('fail')", "-ERR it failed"),
        ("return select('#', redis.pcall('fail'))", ":1"),
        (
            "return {pcall(redis.call, 'fail')}",
            "*2 $-1 -ERR it failed",
        ),
        (
            "local ok, e = pcall(redis.call, 'fail') return e.err",
            "$13 ERR it failed",
        ),
        ("return {#KEYS, #ARGV, ARGV[1]}", "*3 :0 :1 $1 x"),
        (
            "return redis.sha1hex('')",
            "$40 da39a3ee5e6b4b0d3255bfef95601890afd80709",
        ),
        ("return redis.acl_check_cmd('get')", ":1"),
        ("return redis.acl_check_cmd('denied')", "$-1"),
        ("return loadstring('return 1 + 1')()", ":2"),
        (
            "return coroutine.wrap(function() return redis.call('ok') end)()",
            "+OK",
        ),
    ] {
        assert_eq!(run(&scripts, text, &["x"]), reply, "{text}");
    }
}

#[test]
fn errors_tell_where_they_were_raised() {
    let scripts = Scripts::default();
    for (text, error) in [
        (
            "return x",
            "-ERR user_script:1: Script attempted to access nonexistent global variable 'x'",
        ),
        ("\n\nerror('no')", "-ERR user_script:3: no"),
        ("error({err='MY code'})", "-MY code"),
        ("return redis.call('fail')", "-ERR it failed"),
        (
            "return redis.call({})",
            "-ERR Lua redis lib command arguments must be strings or integers",
        ),
        (
            "return redis.call()",
            "-ERR Please specify at least one argument for this redis lib call",
        ),
        (
            "x = 1",
            "-ERR user_script:1: Attempt to modify a readonly table",
        ),
        (
            "local a = nil; return a.b",
            "-ERR user_script:1: attempt to index local 'a' (a nil value)",
        ),
    ] {
        let sha = String::from_utf8(cache_sha(text).to_vec()).unwrap();
        let reply = run(&scripts, text, &[]);
        let line = 1 + text.bytes().take_while(|byte| *byte == b'\n').count();
        assert_eq!(
            reply,
            format!("{error} script: {sha}, on @user_script:{line}."),
            "{text}"
        );
    }
    let compiled = run(&scripts, "return (", &[]);
    assert!(
        compiled.starts_with("-ERR Error compiling script (new function): user_script:1:"),
        "{compiled}"
    );
    for (text, error) in [
        (
            "#!lua flags=no-such\nreturn 1",
            "ERR Unexpected flag in script shebang: no-such",
        ),
        (
            "#!js\nreturn 1",
            "ERR Unexpected engine in script shebang: #!js",
        ),
        ("#!lua", "ERR Invalid script shebang"),
    ] {
        assert_eq!(
            scripts.of_text(text.as_bytes()).unwrap_err().to_string(),
            error
        );
    }
    assert!(
        scripts
            .of_text(b"#!lua flags=no-writes\nreturn 1")
            .unwrap()
            .no_writes
    );
    assert_eq!(run(&scripts, "#!lua flags=no-writes\nreturn 1", &[]), ":1");
}

fn cache_sha(text: &str) -> Sha {
    Scripts::default().of_text(text.as_bytes()).unwrap().sha
}

#[test]
fn libraries_do_what_they_do_in_redis() {
    let scripts = Scripts::default();
    for (text, expected) in [
        (
            "return cjson.encode({1, 2, {a='b/\"\\n'}})",
            r#"[1,2,{"a":"b\/\"\n"}]"#,
        ),
        ("return cjson.encode({})", "{}"),
        ("return cjson.encode({[1]=1, [3]=3})", "[1,null,3]"),
        (
            "return cjson.encode({[1]=1, [100]=3})",
            "-ERR user_script:1: Cannot serialise table: excessively sparse array",
        ),
        (
            "return cjson.encode({1/3, 1e15, 2^53, -0.5, cjson.null, true})",
            "[0.33333333333333,1e+15,9.007199254741e+15,-0.5,null,true]",
        ),
        (
            "return cjson.encode(0/0)",
            "-ERR user_script:1: Cannot serialise number: must not be NaN or Inf",
        ),
        (
            "return cjson.encode(print == nil)",
            "-ERR user_script:1: Script attempted to access nonexistent global variable 'print'",
        ),
        (
            "local t = cjson.decode('{\"a\": [1, 2.5, null, {\"b\": \"\\\\u00e9\\\\ud83d\\\\ude00\"}]}') return t.a[4].b .. t.a[2] .. tostring(t.a[3] == cjson.null)",
            "é😀2.5true",
        ),
        (
            "return cjson.decode('[1,2')",
            "-ERR user_script:1: Expected comma or array end but found T_END at character 5",
        ),
        (
            "return cjson.decode('nope')",
            "-ERR user_script:1: Expected value but found invalid token at character 1",
        ),
        (
            "return cjson.encode(cjson.decode(cjson.encode({x={y={z={1}}}})))",
            r#"{"x":{"y":{"z":[1]}}}"#,
        ),
        (
            "local t = {} for i = 1, 1100 do t = {t} end return cjson.encode(t)",
            "-ERR user_script:1: Cannot serialise, excessive depth (1001)",
        ),
        (
            "local t = cmsgpack.unpack(cmsgpack.pack({1, 'a', {x=true}, 1.5, -7, 70000})) return t[1] .. t[2] .. tostring(t[3].x) .. t[4] .. t[5] .. t[6]",
            "1atrue1.5-770000",
        ),
        (
            "return (cmsgpack.pack({}, 1, 'abc', false):gsub('.', function(c) return bit.tohex(c:byte(), 2) end))",
            "9001a3616263c2",
        ),
        (
            "return select('#', cmsgpack.unpack(cmsgpack.pack(1, 2, 3)))",
            ":3",
        ),
        (
            "local at, a = cmsgpack.unpack_one(cmsgpack.pack(5, 6)) return at .. ' ' .. a",
            "1 5",
        ),
        (
            "return cmsgpack.unpack('\\220')",
            "-ERR user_script:1: Missing bytes in input.",
        ),
        (
            "local s = struct.pack('>I2<i4bs', 258, -2, -1, 'xy') return #s .. ' ' .. table.concat({struct.unpack('>I2<i4bs', s)}, ' ')",
            "10 258 -2 -1 xy 11",
        ),
        ("return struct.size('!4bi4d')", ":16"),
        (
            "return table.concat({struct.unpack('bc0', struct.pack('bc0', 3, 'abc'))}, ' ')",
            "abc 5",
        ),
        (
            "return struct.unpack('i4', 'abc')",
            "-ERR user_script:1: bad argument #2 to 'unpack' (data string too short)",
        ),
        (
            "return struct.pack('q', 1)",
            "-ERR user_script:1: invalid format option 'q'",
        ),
        (
            "return bit.band(0xff, 0x0f) .. bit.bor(1, 2) .. bit.bxor(3, 1) .. bit.bnot(0) .. bit.lshift(1, 31) .. bit.arshift(-8, 1)",
            "1532-1-2147483648-4",
        ),
        (
            "return bit.tohex(255, 4) .. bit.tohex(-1, -8) .. bit.bswap(1) .. bit.rol(1, 33) .. bit.tobit(2^32 + 5)",
            "00ffFFFFFFFF1677721625",
        ),
        (
            "math.randomseed(7) local a = math.random() math.randomseed(7) return tostring(a == math.random())",
            "true",
        ),
        ("return tostring(os.clock() >= 0)", "true"),
    ] {
        assert_eq!(string(&scripts, text), expected, "{text}");
    }
}

#[test]
fn no_script_changes_what_others_find() {
    let scripts = Scripts::default();
    for attack in [
        "string.rep = nil",
        "error(_G)",
        "error(string)",
        "error(redis)",
        "table.insert(_G, 1, 'x') error()",
        "table.insert(string, 1, 'x') error()",
        "string.x = 1",
        "rawset(string, 'rep', nil)",
        "rawset(_G, 'x', 1)",
        "_G.x = 1",
        "redis.call = nil",
        "setmetatable(string, {})",
        "setmetatable(_G, nil)",
        "getmetatable(string).__index.rep = nil",
        "getmetatable('').__index.rep = nil",
        "getmetatable(_G).__index.x = 1",
        "loadstring('x = 1')()",
        "cjson.encode = nil",
        "KEYS.x = 1 KEYS = nil",
        "return setfenv",
        "return getfenv",
        "return require",
        "return io",
        "os.execute('true')",
        "return debug",
        "return dofile",
        "return loadfile",
        "return newproxy",
        "return string.dump(function() end)",
        "return load(string.char(27) .. 'Lua')()",
    ] {
        let reply = run(&scripts, attack, &[]);
        assert!(reply.starts_with('-'), "{attack}: {reply}");
        let after = "return {string.rep('a', 2), type(redis.call), cjson.encode({1}), #KEYS, pcall(function() return x or source or line end) and 1 or 0, rawget(_G, 1) or rawget(string, 1) or 'none'}";
        assert_eq!(
            run(&scripts, after, &[]),
            "*6 $2 aa $8 function $3 [1] :0 :0 $4 none",
            "{attack}"
        );
    }
    assert_eq!(
        run(&scripts, "table.insert(string, 'x') return 1", &[]),
        ":1"
    );
    assert_eq!(run(&scripts, "return string.rep('a', 2)", &[]), "$2 aa");
}

#[test]
fn a_script_stops_when_it_is_killed_or_takes_long_also_where_it_catches_errors() {
    let scripts = Scripts::default();
    for text in [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "local f = function() while true do end end while true do coroutine.wrap(f)() end",
        "while true do redis.pcall('x') end",
        // Many coroutines, none of which runs for long.
        "local w = coroutine.wrap local function f(d) if d > 0 then for i = 1, 60 do w(f)(d - 1) end end end f(100)",
        // No memory is left to stop it with.
        "local t pcall(function() while true do t = {t} end end) \
         pcall(function() while true do local u = t t = function() return u end end end) \
         local function spin() while true do end end while true do pcall(spin) end",
        "while true do pcall(redis.call, 'long') end",
    ] {
        let script = scripts.of_text(text.as_bytes()).unwrap();
        let done = scripts.with_engine(false, |engine| {
            engine.run(&script, (&[], &[]), true, &mut Echo)
        });
        assert!(
            matches!(done, Ok(Err(CommandError::Long))),
            "{text}: {done:?}"
        );
        if text.contains("long") {
            continue;
        }
        thread::scope(|scope| {
            let long = scope.spawn(|| {
                scripts.with_engine(false, |engine| {
                    engine.run(&script, (&[], &[]), false, &mut Echo)
                })
            });
            while !long.is_finished() {
                scripts.kill();
                thread::sleep(Duration::from_millis(1));
            }
            let done = long.join().unwrap();
            assert!(
                matches!(done, Ok(Err(CommandError::Killed))),
                "{text}: {done:?}"
            );
        });
    }
    assert_eq!(scripts.kill(), 0);
    let short = scripts.of_text(b"return 1").unwrap();
    let done = scripts.with_engine(false, |engine| {
        engine.run(&short, (&[], &[]), true, &mut Echo)
    });
    assert!(matches!(done, Ok(Ok(Ok(_)))), "{done:?}");
}

/// Each of these ended the process, or kept a thread for ever.
#[test]
fn no_script_harms_the_process() {
    let attacks = || {
        let scripts = Scripts::default();
        for text in [
            "return unpack({}, -2147483648, 2147483647)",
            "return unpack({}, -2147483648, 0/0)",
            "return unpack({}, 0/0, 1)",
            "return unpack({}, 1, 1e300)",
            "return string.find(string.rep('a', 60000), string.rep('a?', 60000))",
            "table.insert({}, -2147483648, 1)",
            "table.insert({}, 0/0, 1)",
            "local t = {} for i = 1, 60 do t = {t, t} end return t",
            "local t = {} for i = 1, 60 do t = {t, t} end return cjson.encode(t)",
            "cjson.encode_sparse_array(true, 0) return cjson.encode({[2^40] = 1})",
            "local t = {} for i = 1, 1000 do t[i] = string.rep('x', 1e6) end return cjson.encode(t)",
            "local s, t = string.rep('x', 1e7), {} for i = 1, 1000 do t[i] = s end return redis.call(unpack(t))",
            "local s, t = string.rep('x', 1e7), {} for i = 1, 1000 do t[i] = s end return cmsgpack.pack(unpack(t))",
            "local s, t = string.rep('x', 1e7), {} for i = 1, 1000 do t[i] = s end return struct.pack(string.rep('c0', 1000), unpack(t))",
            "return cmsgpack.unpack(string.rep('\\192', 2e6))",
            "return cmsgpack.unpack(string.rep('\\145', 1e5))",
            "return cmsgpack.unpack(string.rep('x', 1e7))",
            "local s = string.rep('x', 1e7) return load(function() return s end)",
            "return struct.unpack('', 'x', 0/0)",
            "return struct.unpack('b', 'x', 1e300)",
            "return struct.unpack('!8i8', 's', 1e15)",
            "local f = function() end for i = 1, 1e6 do f = function(g) return function() return g() end end end local t = {} \
             for i = 1, 6999 do t[i] = {} end redis.pcall(unpack(t)) error('done')",
            "local function r() return r() + 1 end return r()",
            "error('\\255')",
            "error(redis.call)",
        ] {
            let reply = run(&scripts, text, &[]);
            assert!(
                reply.starts_with('-'),
                "{text}: {}",
                &reply[..reply.len().min(100)]
            );
        }
        let deep = "local deep = {} for i = 1, 900 do deep = {deep} end \
                    local function f(n) if n == 0 then return cjson.encode(deep) end \
                    return (string.gsub('a', 'a', function() return f(n - 1) end)) end \
                    return {pcall(f, 60) and 1, string.rep('', 1e18), #string.rep('ab', 3), select('#', unpack({}, 1, 3))}";
        assert_eq!(run(&scripts, deep, &[]), "*4 :1 $0  :6 :3");
    };
    // As large as those of the server's threads.
    let thread = thread::Builder::new().stack_size(16 << 20);
    thread.spawn(attacks).unwrap().join().unwrap();
}

#[test]
fn a_script_that_nobody_stops_ends_and_only_so_many_run_at_a_time() {
    /// Holds so many states, and then asks for another one.
    fn hold(scripts: &Scripts, states: usize) -> String {
        let inner = |_: &mut Engine| match states {
            1 => match scripts.with_engine(false, |_| ()) {
                Ok(()) => "it runs".to_owned(),
                Err(e) => e.to_string(),
            },
            _ => hold(scripts, states - 1),
        };
        scripts.with_engine(false, inner).unwrap()
    }
    let scripts = Scripts::default();
    assert_eq!(hold(&scripts, 63), "it runs");
    assert!(hold(&scripts, 64).starts_with("BUSY 64 scripts"));
    let endless = scripts.of_text(b"while true do end").unwrap();
    let done = scripts.with_engine(false, |engine| {
        engine.run(&endless, (&[], &[]), false, &mut Echo)
    });
    assert!(matches!(done, Ok(Err(CommandError::Late))), "{done:?}");
    scripts.stop();
    let refused = scripts.with_engine(true, |_| ()).unwrap_err();
    assert_eq!(refused.to_string(), "ERR the server is stopping");
}

#[test]
fn memory_is_bounded() {
    let scripts = Scripts::default();
    for text in [
        "local t = {} for i = 1, 1e9 do t[i] = string.rep('x', 1e6) .. i end",
        "return string.rep('x', 1e9)",
        "local s = 'x' while true do s = s .. s end",
    ] {
        let reply = run(&scripts, text, &[]);
        assert!(
            reply.starts_with("-ERR") && reply.contains("memory"),
            "{text}: {reply}"
        );
    }
    assert_eq!(run(&scripts, "return #string.rep('x', 1000)", &[]), ":1000");
}

#[test]
fn scripts_are_kept_until_they_are_forgotten() {
    let scripts = Scripts::default();
    let first = scripts.of_text(b"return 0").unwrap();
    let loaded = Script::new(b"return 'loaded'").unwrap();
    let loaded = scripts.load(loaded).unwrap();
    for n in 1..=500 {
        scripts.of_text(format!("return {n}").as_bytes()).unwrap();
    }
    assert!(scripts.find(&first.sha).is_none());
    assert!(scripts.find(&loaded.sha).is_some());
    let long = "-".repeat(1100);
    let long = Script::new(format!("--{long}").as_bytes()).unwrap();
    let error = scripts.load(long).unwrap_err();
    assert!(error.to_string().contains("SCRIPT FLUSH"), "{error}");
    assert_eq!(scripts.kept().0, 501);
    for n in 0..20 {
        let text = format!("--{}{n}", "-".repeat(100_000));
        scripts.of_text(text.as_bytes()).unwrap();
    }
    assert!(scripts.kept().1 < 2 << 20);
    scripts.flush();
    assert_eq!(scripts.kept(), (0, 0));
    assert!(scripts.find(&loaded.sha).is_none());
}
