// What the node programs share: the environment they are run with and the report they give (see ../checks.py).
'use strict';

const env = process.env;
const router = env.VIA === 'router';
const keys = {};
for (const shard of ['s0', 's1']) keys[shard] = env[`KEYS_${shard.toUpperCase()}`].split(',').map(Number);
const skip = new Set((env.SKIP || '').split('\n'));
const checks = [];

/** Adds a check: a function whose (promised) value is what the client saw. */
const check = (name, body) => checks.push([name, body]);
/** An account of that shard that no other check uses. */
const s0 = () => keys.s0.shift();
const s1 = () => keys.s1.shift();

/** What a failed promise says: the SQLSTATE (or the driver's own code) and the constraint. */
async function errorOf(promise) {
  try {
    await promise;
    return 'no error';
  } catch (error) {
    return [error.code ?? error.message, error.constraint ?? error.constraint_name ?? null];
  }
}

function must(condition, seen) {
  if (!condition) throw new Error(JSON.stringify(seen));
}

async function run() {
  const say = (line) => process.stdout.write(JSON.stringify(line) + '\n');
  for (const [name, body] of checks) {
    if (skip.has(name) || (name.startsWith('router: ') && !router)) continue;
    say({begin: name});
    try {
      say({check: name, value: (await body()) ?? null});
    } catch (error) {
      say({check: name, failed: `${error.stack}\n${JSON.stringify(error)}`});
    }
  }
}

module.exports = {check, env, errorOf, must, router, run, s0, s1};
