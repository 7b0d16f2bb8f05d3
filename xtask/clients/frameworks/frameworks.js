// Frameworks of JavaScript, one at a time (FRAMEWORK), against a server: PHASE HOST PORT. As
// frameworks.py.

const [phase, host, port] = [process.argv[2], process.argv[3], Number(process.argv[4])];
const options = { host, port };
const JOBS = 20;

function check(found, expected, what) {
  const [a, b] = [found, expected].map((value) => JSON.stringify(value));
  if (a !== b) {
    throw new Error(`${what}: ${a}, not ${b}`);
  }
}

const numbers = [...Array(JOBS).keys()];

const of = {
  async bull() {
    const Bull = require("bull");
    const queue = new Bull("queue", { redis: options });
    if (phase === "before") {
      for (const n of numbers) {
        const how = [{}, { delay: 500 }, { priority: 2 }, { lifo: true }][n % 4];
        await queue.add({ n }, { jobId: `job-${n}`, ...how });
      }
      const { waiting, delayed } = await queue.getJobCounts();
      check(waiting + delayed, JOBS, "jobs");
      return;
    }
    queue.process(2, async (job) => 2 * job.data.n);
    const jobs = await Promise.all(numbers.map((n) => queue.getJob(`job-${n}`)));
    const results = await Promise.all(jobs.map((job) => job.finished()));
    check(results, numbers.map((n) => 2 * n), "results");
    check((await queue.getJobCounts()).completed, JOBS, "completed jobs");
    await queue.close();
  },

  async "bee-queue"() {
    const Queue = require("bee-queue");
    const queue = new Queue("queue", { redis: options, activateDelayedJobs: true });
    if (phase === "before") {
      for (const n of numbers) {
        const job = queue.createJob({ n });
        await (n % 4 === 0 ? job.delayUntil(Date.now() + 500) : job).save();
      }
      const { waiting, delayed } = await queue.checkHealth();
      check(waiting + delayed, JOBS, "jobs");
      await queue.close();
      return;
    }
    const done = [];
    await new Promise((resolve) => {
      queue.process(async (job) => job.data.n);
      queue.on("succeeded", (_, n) => done.push(n) === JOBS && resolve());
    });
    check(done.sort((a, b) => a - b), numbers, "jobs done");
    await queue.close();
  },

  async "rate-limiter-flexible"() {
    const Redis = require("ioredis");
    const { RateLimiterRedis } = require("rate-limiter-flexible");
    const client = new Redis(options);
    const limiter = new RateLimiterRedis({ storeClient: client, points: 3, duration: 3600 });
    if (phase === "before") {
      check((await limiter.consume("user")).remainingPoints, 2, "points");
      check((await limiter.consume("user", 2)).remainingPoints, 0, "points");
    } else {
      const refused = await limiter.consume("user").catch((why) => why);
      check(refused.remainingPoints, 0, "points of who had none");
      await limiter.delete("user");
      check((await limiter.consume("user")).remainingPoints, 2, "points");
    }
    client.disconnect();
  },

  async redlock() {
    const Redis = require("ioredis");
    const Redlock = require("redlock");
    const client = new Redis(options);
    const redlock = new Redlock([client], { retryCount: 0 });
    const other = () => redlock.lock("door", 1000).then(() => true, () => false);
    if (phase === "before") {
      const lock = await redlock.lock("door", 3600_000);
      check(await other(), false, "lock of what is locked");
      await lock.extend(3600_000);
      await client.set("value", lock.value);
    } else {
      check(await other(), false, "lock of what is locked");
      const value = await client.get("value");
      await new Redlock.Lock(redlock, ["door"], value, Date.now() + 3600_000).unlock();
      check(await other(), true, "lock");
    }
    client.disconnect();
  },
};

setTimeout(() => process.exit(9), 120_000).unref();
of[process.env.FRAMEWORK]().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
