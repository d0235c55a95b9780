// node-postgres (`pg`): what its users do. Run by tests/test_drivers_node.py.
'use strict';

const fs = require('fs');
const {Client, Pool, types} = require('pg');
const Cursor = require('pg-cursor');
const {check, env, errorOf, must, router, run, s0, s1} = require('./checks.js');

const BALANCE = 'SELECT balance FROM account WHERE account_id = $1';
const CREDIT = 'UPDATE account SET balance = balance + $1 WHERE account_id = $2';
const LINES = 'SELECT line FROM order_items WHERE account_id = $1 ORDER BY order_id, line';
const ca = fs.readFileSync(env.PGSSLROOTCERT, 'utf8');
const pool = new Pool({max: 6, ssl: {ca}, application_name: 'shop'});

/** Runs `body` with a client of its own, which is ended whatever comes. */
async function withClient(options, body) {
  const client = new Client({ssl: {ca}, ...options});
  client.on('error', () => {});
  await client.connect();
  try {
    return await body(client);
  } finally {
    await client.end();
  }
}

const balance = async (key) => (await pool.query(BALANCE, [key])).rows[0].balance;
const rows = async (client, ...query) => (await client.query(...query)).rows;

check("connects with SCRAM, with and without TLS", async () => {
  const seen = [];
  for (const ssl of [false, {ca}, {rejectUnauthorized: false}]) {
    await withClient({ssl}, async (client) => {
      must(client.processID > 0 || router, client.processID);
      seen.push(await rows(client, 'SELECT current_user, current_database()'));
    });
  }
  seen.push(await errorOf(withClient({password: 'wrong'}, async () => {})));
  return seen;
});

check("settings of the connection are in force", () => withClient(
  {application_name: 'mine', statement_timeout: 5000, lock_timeout: 4000, idle_in_transaction_session_timeout: 6000,
    options: '-c timezone=Asia/Tokyo', client_encoding: 'UTF8'},
  async (client) => {
    const seen = [];
    for (const name of ['application_name', 'statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout',
      'timezone', 'client_encoding', 'datestyle']) {
      seen.push(Object.values((await rows(client, `SHOW ${name}`))[0])[0]);
    }
    return seen;
  }));

check("statements over all shards, whole and in parts", () => withClient({}, async (client) => {
  const hint = '/* interlock: scatter */ ';
  const sql = hint + 'SELECT order_id, account_id, placed_at FROM orders WHERE order_id > $1'
    + ' ORDER BY order_id DESC, account_id LIMIT $2';
  const seen = [await rows(client, sql.replace('$1', '1000').replace('$2', '30')),
    await rows(client, sql, [1000, 30]),
    await rows(client, {name: 'newest', text: sql, values: [1000, 9]}),
    await rows(client, {name: 'newest', text: sql, values: [1500, 8]}),
    await rows(client, hint + 'SELECT placed_at, count(*), avg(order_id) FROM orders GROUP BY placed_at ORDER BY 1')];
  await client.query('BEGIN');
  const cursor = client.query(new Cursor(sql, [1000, 25]));
  seen.push(await cursor.read(10), await cursor.read(10), await cursor.read(10), await cursor.read(10));
  await cursor.close();
  seen.push(await rows(client, sql, [2000, 3]));
  await client.query('COMMIT');
  return seen;
}));

check("creates, reads, updates and deletes", async () => {
  const key = s0();
  const seen = [];
  const insert = await pool.query(
    'INSERT INTO orders (account_id, order_id, note) VALUES ($1, $2, $3) RETURNING status, placed_at', [key, 7, "it's ☃"]);
  seen.push(insert.command, insert.rowCount, insert.rows, insert.fields.map((field) => [field.name, field.dataTypeID]));
  seen.push(await rows(pool, 'SELECT note FROM orders WHERE account_id = $1 AND order_id = $2', [key, '7']));
  seen.push(await rows(pool, 'SELECT o.note, i.price FROM orders o JOIN order_items i ON i.account_id = o.account_id'
    + ' AND i.order_id = o.order_id WHERE o.account_id = $1 ORDER BY i.order_id, i.line', [key]));
  const update = await pool.query(`UPDATE orders SET note = 'new' WHERE account_id = ${key}`);
  const gone = await pool.query('DELETE FROM orders WHERE order_id = $2 AND account_id = $1', [key, 7]);
  return [...seen, update.rowCount, gone.command, gone.rowCount];
});

check("JavaScript's types go there and back", async () => {
  const key = s1();
  await pool.query('UPDATE account SET settings = $1, tags = $2, picture = $3, opened = $4, balance = $5 WHERE account_id = $6',
    [{a: [1, null, 'ü']}, ['x', 'y,"z"', ''], Buffer.from([0, 255]), '2024-02-29', '12.50', key]);
  const [row] = await rows(pool, 'SELECT settings, tags, picture, opened::text, balance FROM account WHERE account_id = $1', [key]);
  const binary = await pool.query({text: 'SELECT picture, tags, 5::int4 AS n, true AS t FROM account WHERE account_id = $1',
    values: [key], binary: true});
  const array = await pool.query({text: 'SELECT 1, NULL, balance FROM account WHERE account_id = $1', values: [key],
    rowMode: 'array'});
  return [{...row, picture: row.picture.toString('hex')}, binary.rows[0].n, binary.rows[0].picture.toString('hex'), array.rows];
});

check("keys as numbers, as strings and as BigInt", async () => {
  const key = s0();
  const seen = [];
  for (const value of [key, String(key), BigInt(key)]) seen.push(await rows(pool, BALANCE, [value]));
  seen.push(await rows(pool, 'SELECT balance FROM account WHERE account_id = $1::bigint', [key]));
  return seen;
});

check("transactions commit, roll back and use savepoints", async () => {
  const key = s1();
  const client = await pool.connect();
  try {
    const seen = [];
    await client.query('BEGIN');
    await client.query(CREDIT, [10, key]);
    seen.push(await balance(key));
    await client.query('SAVEPOINT one');
    seen.push(await errorOf(client.query(CREDIT, [-5000, key])));
    await client.query('ROLLBACK TO SAVEPOINT one');
    await client.query(CREDIT, [1, key]);
    seen.push((await client.query('COMMIT')).command, await balance(key));
    await client.query('BEGIN ISOLATION LEVEL SERIALIZABLE');
    seen.push(await rows(client, "SELECT current_setting('transaction_isolation') AS level FROM account WHERE account_id = $1", [key]));
    seen.push(await errorOf(client.query(CREDIT, [-5000, key])), await errorOf(client.query(BALANCE, [key])));
    seen.push((await client.query('COMMIT')).command);
    await client.query('BEGIN READ ONLY');
    seen.push(await errorOf(client.query(CREDIT, [1, key])));
    await client.query('ROLLBACK');
    return [...seen, await balance(key)];
  } finally {
    client.release();
  }
});

check("errors have their code, constraint, table and position", async () => {
  const key = s0();
  const seen = [];
  for (const text of ['UPDATE account SET balance = -1 WHERE account_id = $1',
    "INSERT INTO account (account_id, name) VALUES ($1, 'again')",
    "INSERT INTO order_items VALUES ($1, 9, 1, 'x', 1, 1)",
    'INSERT INTO orders (account_id, order_id, status) VALUES ($1, 9, NULL)',
    'SELECT nothing FROM account WHERE account_id = $1', 'SELEC 1 FROM account WHERE account_id = $1']) {
    try {
      await pool.query(text, [key]);
      seen.push('no error');
    } catch (error) {
      const {code, severity, constraint, table, column, position, schema} = error;
      seen.push([code, severity, constraint ?? null, table ?? null, column ?? null, position ?? null, schema ?? null]);
    }
  }
  return seen;
});

check("named statements are prepared once and reused", async () => {
  const [here, there] = [s0(), s1()];
  return withClient({}, async (client) => {
    const seen = [];
    for (let n = 0; n < 12; n++) {
      const {rows: [row]} = await client.query({name: 'balance', text: BALANCE, values: [n % 2 ? here : there]});
      seen.push(row.balance);
    }
    await client.query('DEALLOCATE ALL');
    seen.push(await errorOf(client.query({name: 'balance', text: BALANCE, values: [here]})));
    return seen;
  });
});

check("a named statement on changing backends", async () => {
  const key = s1();
  return withClient({}, async (client) => {
    const pids = new Set();
    const seen = [];
    const ask = async () => {
      const {rows: [row]} = await client.query({name: 'who', values: [key],
        text: 'SELECT pg_backend_pid() AS pid, balance FROM account WHERE account_id = $1'});
      pids.add(row.pid);
      seen.push(row.balance);
    };
    await ask();
    const holders = [];
    for (let n = 0; n < 3; n++) {
      const holder = await pool.connect();
      holders.push(holder);
      await holder.query('BEGIN');
      await holder.query(BALANCE, [key]);
      await ask();
      await ask();
    }
    for (const holder of holders) {
      await holder.query('ROLLBACK');
      holder.release();
    }
    must(pids.size > 1 || !router, [...pids]);
    return seen;
  });
});

check("queries queued on one client are answered in order", async () => {
  const [here, there] = [s0(), s1()];
  return withClient({}, async (client) => {
    const all = [];
    for (let n = 0; n < 30; n++) all.push(errorOf(client.query(n % 7 === 3 ? 'SELECT nothing FROM account WHERE account_id = $1' : BALANCE, [n % 2 ? here : there])));
    return Promise.all(all);
  });
});

check("a cursor reads in parts", async () => {
  const key = s0();
  return withClient({}, async (client) => {
    await client.query('BEGIN');
    const cursor = client.query(new Cursor(LINES, [key]));
    const seen = [await cursor.read(2), await cursor.read(3), await cursor.read(10), await cursor.read(1)];
    await cursor.close();
    seen.push((await client.query(CREDIT, [1, key])).rowCount);
    const early = client.query(new Cursor(LINES, [key]));
    seen.push(await early.read(1));
    await early.close();
    await client.query('COMMIT');
    return [...seen, await balance(key)];
  });
});

check("a cursor outside of a transaction", async () => {
  const key = s1();
  return withClient({}, async (client) => {
    const cursor = client.query(new Cursor(LINES, [key]));
    const seen = [await cursor.read(2), await cursor.read(10)];
    await cursor.close();
    return [...seen, (await client.query(CREDIT, [1, key])).rowCount];
  });
});

check("several statements in one text", async () => {
  const key = s0();
  const results = await pool.query(`UPDATE account SET name = 'n' WHERE account_id = ${key};`
    + `SELECT name FROM account WHERE account_id = ${key}; SELECT count(*) FROM orders WHERE account_id = ${key}`);
  const seen = results.map((result) => [result.command, result.rowCount, result.rows]);
  seen.push(await errorOf(pool.query(`UPDATE account SET name = 'm' WHERE account_id = ${key}; SELECT 1/0 FROM account WHERE account_id = ${key}`)));
  return [...seen, await rows(pool, 'SELECT name FROM account WHERE account_id = $1', [key]), (await pool.query('')).rows];
});

check("the pool hands out clients, waits and survives errors", async () => {
  const [here, there] = [s0(), s1()];
  const small = new Pool({max: 3, ssl: {ca}, idleTimeoutMillis: 200});
  const work = [];
  for (let n = 0; n < 60; n++) {
    work.push(n % 10 === 9 ? errorOf(small.query(CREDIT, [-1e6, here])) : small.query(CREDIT, [1, n % 2 ? here : there]));
  }
  const counted = (await Promise.all(work)).map((result) => result.rowCount ?? result[0]);
  const seen = [counted.join(), small.totalCount <= 3, small.waitingCount];
  await small.end();
  return [...seen, await balance(here), await balance(there)];
});

check("a query timeout of the client's connection", async () => {
  const key = s1();
  const holder = await pool.connect();
  await holder.query('BEGIN');
  await holder.query(CREDIT, [1, key]);
  const seen = await withClient({statement_timeout: 300}, async (client) =>
    [await errorOf(client.query(CREDIT, [1, key])), (await client.query('SELECT 1 AS n')).rows]);
  await holder.query('ROLLBACK');
  holder.release();
  return [...seen, (await pool.query(CREDIT, [1, key])).rowCount];
});

check("notices", () => withClient({}, async (client) => {
  const notices = [];
  client.on('notice', (notice) => notices.push([notice.code, notice.severity, notice.message]));
  await client.query('ROLLBACK');
  await client.query('BEGIN');
  await client.query('BEGIN');
  await client.query('COMMIT');
  return notices;
}));

check("large values both ways", async () => {
  const key = s0();
  const text = 'ü☃'.repeat(1_000_000);
  await pool.query('UPDATE account SET name = $1 WHERE account_id = $2', [text, key]);
  const [row] = await rows(pool, 'SELECT name FROM account WHERE account_id = $1', [key]);
  const many = await pool.query("SELECT n, repeat('x', 500) AS x FROM account, generate_series(1, 20000) n WHERE account_id = $1", [key]);
  return [row.name === text, many.rows.length];
});

check("a client that ends in the middle of a transaction leaves nothing", async () => {
  const key = s1();
  await withClient({}, async (client) => {
    await client.query('BEGIN');
    await client.query(CREDIT, [100, key]);
  });
  return [(await pool.query(CREDIT, [1, key])).rowCount, await balance(key)];
});

check("router: refusals have their code and keep the client", () => withClient({}, async (client) => {
  const [here, there] = [s0(), s1()];
  const seen = [];
  for (const [text, values] of [['SELECT balance FROM account', []], ['DELETE FROM orders', []],
    ['SELECT 1 FROM account WHERE account_id = ANY($1)', [[here, there]]],
    ['SELECT 1 FROM account WHERE account_id IN ($1, $2)', [here, there]], ['CREATE TABLE t (a int)', []], ['LISTEN x', []]]) {
    seen.push((await errorOf(client.query(text, values)))[0]);
  }
  must(seen.join() === 'IL010,IL010,IL011,IL011,IL024,IL025', seen);
  await client.query('BEGIN');
  await client.query(CREDIT, [-100, here]);
  must((await errorOf(client.query(CREDIT, [100, there])))[0] === 'IL012', 'second shard');
  must((await errorOf(client.query(BALANCE, [here])))[0] === '25P02', 'failed');
  must((await client.query('COMMIT')).command === 'ROLLBACK', 'commit');
  must((await balance(here)) === '1000.00' && (await balance(there)) === '1000.00', 'balances');
}));

must(types.getTypeParser(20)('5') === '5', 'bigint is text');
run().finally(() => pool.end());
