// postgres.js (`postgres`): what its users do. Run by tests/test_drivers_node.py.
'use strict';

const fs = require('fs');
const postgres = require('postgres');
const {check, env, errorOf, must, router, run, s0, s1} = require('./checks.js');

const ca = fs.readFileSync(env.PGSSLROOTCERT, 'utf8');
const make = (options) => postgres({ssl: {ca}, max: 4, onnotice: () => {}, ...options});
const sql = make({});

/** Runs `body` with connections of its own, which are ended whatever comes. */
async function withSql(options, body) {
  const own = make(options);
  try {
    return await body(own);
  } finally {
    await own.end({timeout: 5});
  }
}

const balance = async (key) => (await sql`SELECT balance FROM account WHERE account_id = ${key}`)[0].balance;
const credit = (on, amount, key) => on`UPDATE account SET balance = balance + ${amount} WHERE account_id = ${key}`;

check("connects with SCRAM, with and without TLS, and fetches the types", async () => {
  const seen = [];
  for (const ssl of [false, 'require', 'prefer', {ca}]) {
    await withSql({ssl}, async (own) => seen.push(await own`SELECT current_user::text, current_database()::text`));
  }
  await withSql({fetch_types: false}, async (own) => seen.push(await own`SELECT ${5}::int AS five`));
  await withSql({target_session_attrs: 'read-write'}, async (own) => seen.push(await own`SELECT 1 AS one`));
  seen.push(await errorOf(withSql({password: 'wrong'}, (own) => own`SELECT 1`)));
  return seen;
});

check("parameters of the connection are in force", () => withSql(
  {connection: {application_name: 'mine', statement_timeout: 5000, TimeZone: 'Asia/Tokyo', search_path: 'public'}},
  async (own) => {
    const seen = [await own`SHOW application_name`, await own`SHOW statement_timeout`, await own`SHOW TimeZone`];
    return [...seen, own.parameters.TimeZone, own.parameters.server_version];
  }));

check("creates, reads, updates and deletes", async () => {
  const key = s0();
  const order = {account_id: key, order_id: 7, note: "it's ☃"};
  const inserted = await sql`INSERT INTO orders ${sql(order)} RETURNING status, placed_at`;
  const read = await sql`SELECT note FROM orders WHERE account_id = ${key} AND order_id = ${7}`;
  const columns = await sql`SELECT ${sql(['line', 'price'])} FROM ${sql('order_items')} WHERE account_id = ${key} ORDER BY order_id, line`;
  const updated = await sql`UPDATE orders SET ${sql({note: 'new', status: 'paid'}, 'note', 'status')} WHERE account_id = ${key}`;
  const gone = await sql`DELETE FROM orders WHERE account_id = ${key} AND order_id IN ${sql([7, 8])} RETURNING note`;
  return [inserted, inserted.command, inserted.count, read, columns, updated.count, updated.command, gone];
});

check("many rows at once, fragments and dynamic filters", async () => {
  const key = s1();
  const orders = Array.from({length: 30}, (_, n) => ({account_id: key, order_id: n + 1, note: `n${n}`}));
  const inserted = await sql`INSERT INTO orders ${sql(orders)}`;
  const filter = (note) => (note ? sql`AND note = ${note}` : sql``);
  return [inserted.count,
    await sql`SELECT count(*)::int FROM orders WHERE account_id = ${key} ${filter('n3')}`,
    await sql`SELECT count(*)::int FROM orders WHERE account_id = ${key} ${filter(null)}`,
    await sql.unsafe('SELECT note FROM orders WHERE account_id = $1 AND order_id = $2', [key, 3])];
});

check("JavaScript's types go there and back", async () => {
  const key = s0();
  await sql`UPDATE account SET settings = ${sql.json({a: [1, null, 'ü']})}, tags = ${['x', 'y,"z"', '']},
    picture = ${Buffer.from([0, 255])}, opened = ${new Date('2024-02-29T00:00:00Z')}, balance = ${'12.50'} WHERE account_id = ${key}`;
  const [row] = await sql`SELECT settings, tags, picture, opened::text, balance, 5::int4 AS n, NULL AS nothing
    FROM account WHERE account_id = ${key}`;
  const values = await sql`SELECT line, price FROM order_items WHERE account_id = ${key} ORDER BY order_id, line LIMIT 1`.values();
  const raw = await sql`SELECT name FROM account WHERE account_id = ${key}`.raw();
  return [{...row, picture: Buffer.from(row.picture).toString('hex')}, values, raw[0][0].toString() === `name${key}`];
});

check("keys as numbers, as strings and as BigInt", async () => {
  const key = s1();
  const seen = [];
  for (const value of [key, String(key), BigInt(key)]) {
    seen.push(await sql`SELECT balance FROM account WHERE account_id = ${value}`);
  }
  return seen;
});

check("begin commits, rolls back and nests savepoints", async () => {
  const key = s0();
  const seen = [];
  seen.push(await sql.begin(async (tx) => {
    await credit(tx, 1, key);
    seen.push(await balance(key));
    seen.push(await errorOf(tx.savepoint(async (inner) => {
      await credit(inner, 10, key);
      await credit(inner, -5000, key);
    })));
    await tx.savepoint('kept', (inner) => credit(inner, 100, key));
    return 'done';
  }));
  seen.push(await balance(key));
  seen.push(await errorOf(sql.begin(async (tx) => {
    await credit(tx, 1, key);
    await credit(tx, -5000, key);
  })), await balance(key));
  seen.push(await sql.begin('isolation level serializable read only', (tx) =>
    tx`SELECT current_setting('transaction_isolation') AS level, current_setting('transaction_read_only') AS ro
       FROM account WHERE account_id = ${key}`));
  seen.push(await sql.begin((tx) => [credit(tx, 1, key), tx`SELECT balance FROM account WHERE account_id = ${key}`]));
  return seen;
});

check("errors have their code and what they are about", async () => {
  const key = s1();
  const seen = [];
  for (const query of [sql`UPDATE account SET balance = -1 WHERE account_id = ${key}`,
    sql`INSERT INTO account (account_id, name) VALUES (${key}, 'again')`,
    sql`INSERT INTO order_items VALUES (${key}, 9, 1, 'x', 1, 1)`,
    sql`SELECT nothing FROM account WHERE account_id = ${key}`, sql`SELEC 1`]) {
    try {
      await query;
      seen.push('no error');
    } catch (error) {
      seen.push([error.name, error.code, error.severity, error.constraint_name ?? null, error.table_name ?? null, error.position ?? null]);
    }
  }
  return [...seen, await balance(key)];
});

check("statements are prepared on each connection and reused", async () => {
  const [here, there] = [s0(), s1()];
  const all = [];
  for (let n = 0; n < 40; n++) all.push(balance(n % 2 ? here : there));
  const seen = [(await Promise.all(all)).join()];
  await withSql({prepare: false}, async (own) => seen.push(await own`SELECT balance FROM account WHERE account_id = ${here}`));
  return seen;
});

check("a prepared statement on changing backends", () => withSql({max: 1}, async (own) => {
  const key = s0();
  const pids = new Set();
  const seen = [];
  const ask = async () => {
    const [row] = await own`SELECT pg_backend_pid() AS pid, balance FROM account WHERE account_id = ${key}`;
    pids.add(row.pid);
    seen.push(row.balance);
  };
  await ask();
  const releases = [];
  for (let n = 0; n < 3; n++) {
    await new Promise((held, failed) => {
      const transaction = sql.begin(async (tx) => {
        await tx`SELECT balance FROM account WHERE account_id = ${key}`;
        await new Promise((release) => {
          releases.push(() => { release(); return transaction; });
          held();
        });
      });
      transaction.catch(failed);
    });
    await ask();
    await ask();
  }
  for (const release of releases) await release();
  must(pids.size > 1 || !router, [...pids]);
  return seen;
}));

check("queries are pipelined on one connection and answered in order", () => withSql({max: 1}, async (own) => {
  const [here, there] = [s0(), s1()];
  const all = [];
  for (let n = 0; n < 50; n++) {
    all.push(n % 7 === 3 ? errorOf(own`SELECT nothing FROM account WHERE account_id = ${here}`)
      : own`SELECT ${n}::int AS n, balance FROM account WHERE account_id = ${n % 2 ? here : there}`);
  }
  return Promise.all(all);
}));

check("cursor, forEach and describe", async () => {
  const key = s1();
  const seen = [];
  await sql`SELECT line FROM order_items WHERE account_id = ${key} ORDER BY order_id, line`.cursor(4, (rows) => {
    seen.push(rows.length);
  });
  for await (const [row] of sql`SELECT line FROM order_items WHERE account_id = ${key} ORDER BY order_id, line`.cursor()) {
    seen.push(row.line);
    if (seen.length > 5) break;
  }
  await sql`SELECT line FROM order_items WHERE account_id = ${key} ORDER BY order_id, line`.forEach((row) => seen.push(row.line));
  const described = await sql`SELECT name, balance FROM account WHERE account_id = ${key}`.describe();
  return [...seen, described.types, described.columns.map((column) => [column.name, column.type])];
});

check("several statements in one simple query", async () => {
  const key = s0();
  const results = await sql`${sql.unsafe(`UPDATE account SET name = 'n' WHERE account_id = ${key};
    SELECT name FROM account WHERE account_id = ${key}`)}`.simple();
  return results.map((result) => [result.command, result.count, [...result]]);
});

check("cancel reaches the running query", async () => {
  const key = s1();
  const seen = [];
  await sql.begin(async (tx) => {
    await credit(tx, 1, key);
    await withSql({max: 1}, async (own) => {
      await own`SELECT 1`;
      const query = credit(own, 1, key);
      let over = false;
      const result = errorOf(query).finally(() => { over = true; });
      while (!over) {  // until it is under way there is nothing to cancel
        await new Promise((next) => setTimeout(next, 100));
        query.cancel();
        query.cancelled = null;
      }
      seen.push(await result, await own`SELECT 1 AS one`);
    });
  });
  return [...seen, await balance(key)];
});

check("COPY of a query to the client", async () => {
  const key = s0();
  const stream = await sql.unsafe(`COPY (SELECT note FROM orders WHERE account_id = ${key} ORDER BY order_id) TO STDOUT`).readable();
  let text = '';
  for await (const chunk of stream) text += chunk;
  return [text, await balance(key)];
});

check("many at once over few connections", async () => {
  const [here, there] = [s0(), s1()];
  const work = [];
  for (let n = 0; n < 100; n++) {
    work.push(sql.begin(async (tx) => {
      await tx`SELECT 1 FROM account WHERE account_id = ${n % 2 ? here : there} FOR UPDATE`;
      await credit(tx, 1, n % 2 ? here : there);
    }));
  }
  await Promise.all(work);
  return [await balance(here), await balance(there)];
});

check("connections age and are made again", () => withSql({max: 2, max_lifetime: 0.3, idle_timeout: 0.1}, async (own) => {
  const key = s1();
  const seen = [];
  const end = Date.now() + 1000;
  while (Date.now() < end) {
    seen.push((await own`SELECT balance FROM account WHERE account_id = ${key}`)[0].balance);
    await new Promise((next) => setTimeout(next, 150));
  }
  return [...new Set(seen)];
}));

check("large values both ways", async () => {
  const key = s0();
  const text = 'ü☃'.repeat(1_000_000);
  await sql`UPDATE account SET name = ${text} WHERE account_id = ${key}`;
  const [row] = await sql`SELECT name FROM account WHERE account_id = ${key}`;
  return row.name === text;
});

check("router: refusals have their code and keep the connection", () => withSql({max: 1}, async (own) => {
  const [here, there] = [s0(), s1()];
  const seen = [];
  for (const query of [() => own`SELECT balance FROM account`, () => own`DELETE FROM orders`,
    () => own`SELECT 1 FROM account WHERE account_id IN ${own([here, there])}`,
    () => own.unsafe('CREATE TABLE t (a int)'), () => own.unsafe('LISTEN x'),
    () => own.begin(async (tx) => {
      await credit(tx, -100, here);
      await credit(tx, 100, there);
    })]) {
    seen.push((await errorOf(query()))[0]);
  }
  must(seen.join() === 'IL010,IL010,IL011,IL024,IL025,IL012', seen);
  must((await balance(here)) === '1000.00' && (await balance(there)) === '1000.00', 'balances');
}));

run().finally(() => sql.end({timeout: 5}));
