"""Frameworks of Python, one at a time (FRAMEWORK), against a server: PHASE HOST PORT.

PHASE is `before` or `after`: between the two the server is killed with SIGKILL and started again, so
what was enqueued, locked or stored before is to be there after.
"""

import os
import sys
import threading
import time

JOBS = 20


def check(found, expected, what):
    if found != expected:
        sys.exit(f"{what}: {found!r}, not {expected!r}")


def of_redis(phase, host, port):
    import redis

    client = redis.Redis(host, int(port), decode_responses=True)
    add = client.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
    lock = client.lock("lock", timeout=3600, thread_local=False)
    if phase == "before":
        check(lock.acquire(blocking=False), True, "lock")
        check(client.lock("lock").acquire(blocking=False), False, "lock of what is locked")
        check(lock.extend(10), True, "extend")
        check(lock.owned(), True, "owned")
        client.set("token", lock.local.token)
        check(add(keys=["sum"], args=[5]), 5, "script")
        return
    # The script is gone, and the client loads it again.
    check(add(keys=["sum"], args=[7]), 12, "script")
    pipeline = client.pipeline()
    add(keys=["sum"], args=[1], client=pipeline)
    pipeline.get("sum")
    check(pipeline.execute(), [13, "13"], "script in a pipeline")
    check(client.lock("lock").acquire(blocking=False), False, "lock of what is locked")
    lock.local.token = client.get("token").encode()
    check(lock.reacquire(), True, "reacquire")
    lock.release()
    check(client.lock("lock", timeout=5).acquire(blocking=False), True, "lock")


def of_huey(phase, host, port):
    from huey import RedisHuey
    from huey.api import Result

    huey = RedisHuey("huey", host=host, port=int(port))

    @huey.task()
    def double(n):
        return 2 * n

    if phase == "before":
        now = [double(n) for n in range(JOBS)]
        later = [double.schedule(args=(n,), delay=1) for n in range(JOBS)]
        check(huey.pending_count(), 2 * JOBS, "tasks")
        names = [result.id for result in now + later]
        huey.put("names", names)
        return
    consumer = huey.create_consumer(
        workers=2, periodic=False, initial_delay=0.05, max_delay=0.2, scheduler_interval=1
    )
    consumer.start()
    names = huey.get("names")
    results = [huey.result(name, blocking=True, timeout=30) for name in names]
    check(results, [2 * n for n in range(JOBS)] * 2, "results")
    consumer.stop(graceful=True)


def of_dramatiq(phase, host, port):
    import dramatiq
    import redis
    from dramatiq.brokers.redis import RedisBroker
    from dramatiq.results import Results
    from dramatiq.results.backends import RedisBackend

    url = f"redis://{host}:{port}/0"
    broker = RedisBroker(url=url)
    broker.add_middleware(Results(backend=RedisBackend(url=url)))
    dramatiq.set_broker(broker)
    client = redis.Redis(host, int(port))

    @dramatiq.actor(store_results=True)
    def double(n):
        client.incr("done")
        return 2 * n

    if phase == "before":
        for n in range(JOBS):
            double.send(n)
            double.send_with_options(args=(n,), delay=500)
        check(client.llen("dramatiq:default") + client.llen("dramatiq:default.DQ"), 2 * JOBS, "messages")
        return
    worker = dramatiq.Worker(broker, worker_threads=2, worker_timeout=100)
    worker.start()
    until = time.time() + 30
    while int(client.get("done") or 0) < 2 * JOBS and time.time() < until:
        time.sleep(0.05)
    check(int(client.get("done")), 2 * JOBS, "done")
    message = double.send(21)
    check(message.get_result(block=True, timeout=10_000), 42, "result")
    worker.stop()


def of_celery(phase, host, port):
    from celery import Celery
    from celery.contrib.testing.worker import start_worker

    url = f"redis://{host}:{port}/0"
    app = Celery("work", broker=url, backend=url)
    app.conf.broker_connection_retry_on_startup = True

    @app.task(name="double")
    def double(n):
        return 2 * n

    from celery.result import AsyncResult

    names = [f"task-{n}" for n in range(JOBS)]
    if phase == "before":
        for n, name in enumerate(names):
            double.apply_async((n,), task_id=name, countdown=1 if n % 5 == 0 else None)
        return
    with start_worker(app, pool="solo", perform_ping_check=False, loglevel="ERROR"):
        results = [AsyncResult(name, app=app).get(timeout=60) for name in names]
    check(results, [2 * n for n in range(JOBS)], "results")


if __name__ == "__main__":
    # A framework that hangs is told apart from one that is slow.
    threading.Timer(120, lambda: os._exit(9)).start()
    of = {
        "redis": of_redis,
        "huey": of_huey,
        "dramatiq": of_dramatiq,
        "celery": of_celery,
    }
    of[os.environ["FRAMEWORK"]](*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)
