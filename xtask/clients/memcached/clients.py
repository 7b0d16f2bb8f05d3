"""Python's clients of memcached, one at a time (CLIENT), against a server: HOST PORT."""

import os
import sys
import time


def check(found, expected, what):
    if found != expected:
        sys.exit(f"{what}: {found!r}, not {expected!r}")


def of_pymemcache(host, port):
    from pymemcache.client.base import Client
    from pymemcache.client.hash import HashClient
    from pymemcache.exceptions import MemcacheClientError
    from pymemcache.serde import pickle_serde

    client = Client((host, port), serde=pickle_serde, timeout=10)
    check(client.set("text", "grüße"), True, "set")
    check(client.get("text"), "grüße", "get")
    check(client.get("none", "default"), "default", "get of nothing")
    check(client.set_many({"a": 1, "b": [2, 3]}), [], "set_many")
    check(client.get_many(["a", "b", "c"]), {"a": 1, "b": [2, 3]}, "get_many")
    check(client.add("a", 9, noreply=False), False, "add to what is there")
    check(client.replace("c", 9, noreply=False), False, "replace of nothing")
    _, token = client.gets("a")
    check(client.cas("a", 5, token), True, "cas")
    check(client.cas("a", 6, token), False, "cas with an old token")
    check(client.cas("c", 6, token), None, "cas of nothing")
    plain = Client((host, port), timeout=10)
    plain.set("count", "10")
    check(plain.incr("count", 5), 15, "incr")
    check(plain.decr("count", 100), 0, "decr stops at 0")
    check(plain.incr("nobody", 1), None, "incr of nothing")
    plain.set("ends", "b", noreply=False)
    check(plain.append("ends", "c", noreply=False), True, "append")
    check(plain.prepend("ends", "a", noreply=False), True, "prepend")
    check(plain.get("ends"), b"abc", "append and prepend")
    check(plain.set("soon", "x", expire=1, noreply=False), True, "set with expiry")
    check(plain.touch("soon", expire=100, noreply=False), True, "touch")
    check(plain.touch("soon", expire=1, noreply=False), True, "touch")
    time.sleep(2.1)
    check(plain.get("soon"), None, "what has expired")
    try:
        plain.get("k" * 251)
        sys.exit("a key of 251 bytes was taken")
    except MemcacheClientError:
        pass
    check(plain.delete("a", noreply=False), True, "delete")
    check(plain.delete("a", noreply=False), False, "delete of nothing")
    check(int(plain.stats()[b"curr_items"]) > 0, True, "stats")
    check(plain.version()[:1].isdigit(), True, "version")
    several = HashClient([(host, port), f"{host}:{port}"], timeout=10)
    all = {f"key-{i}": str(i).encode() for i in range(1000)}
    for key, value in all.items():
        several.set(key, value)
    check(several.get_many(list(all)), all, "get_many of 1000")
    check(plain.flush_all(noreply=False), True, "flush_all")
    check(plain.get("count"), None, "what was flushed")


def of_python_memcached(host, port):
    import memcache

    client = memcache.Client([f"{host}:{port}"], cache_cas=True, socket_timeout=10)
    check(client.set("object", {"a": (1, 2)}), True, "set")
    check(client.get("object"), {"a": (1, 2)}, "get")
    check(client.set("number", 7), True, "set of a number")
    check(client.incr("number", 3), 10, "incr")
    check(client.get("number"), 10, "a number with its flags")
    check(client.set_multi({"1": "one", "2": "two"}, key_prefix="p"), [], "set_multi")
    check(client.get_multi(["1", "2", "3"], key_prefix="p"), {"1": "one", "2": "two"}, "get_multi")
    check(client.set("long", "x" * 200_000, min_compress_len=1000), True, "set, compressed")
    check(client.get("long"), "x" * 200_000, "get, compressed")
    check(client.gets("p1"), "one", "gets")
    check(client.cas("p1", "eins"), True, "cas")
    check(client.add("p1", "x"), False, "add to what is there")
    check(client.touch("p1", 100), True, "touch")
    check(client.delete_multi(["p1", "p2"]), 1, "delete_multi")
    check(client.get("p1"), None, "what was deleted")
    ((_, numbers),) = client.get_stats()
    check(int(numbers["curr_items"]) > 0, True, "stats")


def of_pylibmc(host, port):
    import pylibmc

    for binary in [False, True]:
        client = pylibmc.Client([f"{host}:{port}"], binary=binary, behaviors={"cas": True})
        kind = "binary" if binary else "text"
        check(client.set("object", [1, {"b": None}]), True, f"{kind}: set")
        check(client.get("object"), [1, {"b": None}], f"{kind}: get")
        check(client.set_multi({"x": 1, "y": 2}), [], f"{kind}: set_multi")
        check(client.get_multi(["x", "y", "z"]), {"x": 1, "y": 2}, f"{kind}: get_multi")
        check(client.incr("x", 41), 42, f"{kind}: incr")
        value, token = client.gets("y")
        check((value, client.cas("y", 3, token)), (2, True), f"{kind}: cas")
        check(client.add("y", 4), False, f"{kind}: add to what is there")
        check(client.set("ends", "b"), True, f"{kind}: set")
        check(client.append("ends", "c") and client.prepend("ends", "a"), True, f"{kind}: append")
        check(client.get("ends"), "abc", f"{kind}: append and prepend")
        check(client.delete("ends"), True, f"{kind}: delete")
        check(client.get("ends"), None, f"{kind}: what was deleted")
        check(client.set("large", "z" * 900_000), True, f"{kind}: set of 900 KB")
        check(len(client.get("large")), 900_000, f"{kind}: get of 900 KB")
    quiet = pylibmc.Client([f"{host}:{port}"], behaviors={"no_block": True, "tcp_nodelay": True})
    check(quiet.set_multi({f"m{i}": i for i in range(2000)}), [], "set_multi of 2000")
    found = quiet.get_multi([f"m{i}" for i in range(2000)])
    check(found, {f"m{i}": i for i in range(2000)}, "get_multi of 2000")


CLIENTS = {
    "pymemcache": of_pymemcache,
    "python-memcached": of_python_memcached,
    "pylibmc": of_pylibmc,
}
CLIENTS[os.environ["CLIENT"]](sys.argv[1], int(sys.argv[2]))
