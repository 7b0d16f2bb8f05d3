// memjs, which speaks the binary protocol, against a server: HOST PORT.
const assert = require('node:assert');
const memjs = require('memjs');

async function main([host, port]) {
  const client = memjs.Client.create(`${host}:${port}`, { timeout: 10 });
  assert(await client.set('greeting', 'grüße', { expires: 600 }));
  const { value, flags } = await client.get('greeting');
  assert.strictEqual(value.toString(), 'grüße');
  assert(flags !== undefined);
  assert.strictEqual((await client.get('nothing')).value, null);
  assert(!(await client.add('greeting', 'x', {})), 'add to what is there');
  assert(await client.replace('greeting', 'y', {}));
  assert(!(await client.replace('nothing', 'y', {})), 'replace of nothing');
  assert.strictEqual((await client.increment('count', 5, { initial: 10 })).value, 10);
  assert.strictEqual((await client.increment('count', 5, { initial: 10 })).value, 15);
  assert.strictEqual((await client.decrement('count', 100, {})).value, 0);
  assert(await client.append('greeting', 'z'));
  assert.strictEqual((await client.get('greeting')).value.toString(), 'yz');
  assert(await client.touch('greeting', 1));
  await new Promise((done) => setTimeout(done, 2100));
  assert.strictEqual((await client.get('greeting')).value, null, 'what has expired');
  const bytes = Buffer.alloc(300_000, 0xff);
  assert(await client.set('bytes', bytes, {}));
  assert(bytes.equals((await client.get('bytes')).value));
  assert(await client.delete('bytes'));
  assert(!(await client.delete('bytes')), 'delete of nothing');
  const all = Array.from({ length: 1000 }, (_, i) => `m${i}`);
  await Promise.all(all.map((key) => client.set(key, key, {})));
  const found = await Promise.all(all.map((key) => client.get(key)));
  found.forEach(({ value }, i) => assert.strictEqual(value.toString(), all[i]));
  const stats = await new Promise((done, failed) =>
    client.stats((error, _, stats) => (error ? failed(error) : done(stats))));
  assert(Number(stats.curr_items) >= 1000);
  client.close();
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
