#!/usr/bin/env python3
"""A session with `bristlecone serve`, by redis-py.

    bristlecone serve shop.pool &
    pip install redis        # or Debian's python3-redis
    python3 crates/server/examples/session.py [HOST [PORT]]

It works in database 9, which it empties first.
"""

import sys

import redis

HOST = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1"
PORT = int(sys.argv[2]) if len(sys.argv) > 2 else 6379


def transfer(db, source, target, amount):
    """Moves stock from one article to another; again, if somebody else changed either meanwhile."""

    def move(pipe):
        if int(pipe.get(source) or 0) < amount:
            raise ValueError(f"{source}: fewer than {amount} left")
        pipe.multi()
        pipe.decrby(source, amount)
        pipe.incrby(target, amount)

    return db.transaction(move, source, target)


def main():
    db = redis.Redis(HOST, PORT, db=9, decode_responses=True)
    db.flushdb()

    # Every answer is durable when it comes; of a pipeline, all of them after one sync.
    with db.pipeline(transaction=False) as pipe:
        for number in range(1000):
            pipe.set(f"order:2026-11-{1 + number % 30:02}:{number:04}", "packed")
        assert all(pipe.execute())

    # Keys are kept in order.
    third = db.execute_command("BC.PREFIX", "order:2026-11-03:", "LIMIT", 3)
    print("first orders of the third:", third)
    assert third == [f"order:2026-11-03:{n:04}" for n in (2, 32, 62)]
    last = db.execute_command("BC.REVRANGE", "+", "-", "LIMIT", 1)
    assert last == ["order:2026-11-30:0989"]

    # Collections.
    db.hset("article:7", mapping={"name": "bristlecone pine", "height": 15})
    db.zadd("sold", {"article:7": 12, "article:9": 3})
    db.rpush("queue", "pack", "ship", "bill")
    db.set("session:1", "alice", ex=3600)
    assert db.hgetall("article:7") == {"name": "bristlecone pine", "height": "15"}
    assert db.zrevrange("sold", 0, 0, withscores=True) == [("article:7", 12.0)]
    assert db.lpop("queue") == "pack" and 0 < db.ttl("session:1") <= 3600

    # Transactions that watch what they read.
    db.mset({"stock:7": 10, "stock:9": 0})
    transfer(db, "stock:7", "stock:9", 4)
    assert db.mget("stock:7", "stock:9") == ["6", "4"]
    try:
        transfer(db, "stock:7", "stock:9", 100)
    except ValueError as e:
        print("refused:", e)
    assert db.mget("stock:7", "stock:9") == ["6", "4"]

    print(f"{db.dbsize()} keys, durable up to commit {db.execute_command('BC.SNAPSHOT')}")


if __name__ == "__main__":
    main()
