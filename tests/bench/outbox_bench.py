#!/usr/bin/python3
"""What the outbox costs a writer, and how fast it is emptied, on one database; as one JSON object.

trigger: rows are inserted into three tables that differ in their trigger alone: none, one in PL/pgSQL that writes
the same record (with the same columns, without an index), and the outbox's. Single INSERTs (a loop in the server,
and from a client, prepared, each its own transaction), one INSERT of many rows, COPY, and an UPDATE that changes no
recorded column; all three in turn, several rounds. Compared is what a trigger adds to a row: (outbox - none) / (PL/pgSQL - none), by the CPU time of
the backend and by the clock. For INSERT of many rows there is also a PL/pgSQL statement trigger with a transition
table, which knows all rows at once.

drain: a million records, taken and removed in batches of a thousand: the rate, and that of the last tenth
compared with that of the first; beside nothing, beside an old snapshot, and beside one that holds all tables'
locks as well, as pg_dump does. By the client, which fetches the records, and inside the server. Then one, two and
four consumers at once. A plain queue table with an index, for comparison, beside an old snapshot.

The extension has to be installed in the server that PG_CONFIG names.

    outbox_bench.py [--quick] [--rounds N] [--records N] [--only trigger drain]
"""

import argparse
import json
import statistics
import threading
import time
from pathlib import Path

from bench_cluster import SHARD_SETTINGS, instances_folder
from support.postgres import Postgres

COLUMNS = ("order_id bigint PRIMARY KEY, user_id bigint NOT NULL, merchant_id integer NOT NULL,"
           " created_at timestamptz NOT NULL, amount numeric(12,2) NOT NULL, note text")
ROW = "SELECT i, i % 300, i % 10, '2024-05-01'::timestamptz + i * '1 s'::interval, (i % 9999) / 100.0, 'a note of some length'"
# What an index of a merchant's orders, newest first, would list.
LISTED = ["merchant_id", "created_at", "amount"]
VALUES = ("jsonb_build_object('order_id', {row}.order_id, 'merchant_id', {row}.merchant_id, 'created_at', {row}.created_at,"
          " 'amount', {row}.amount)")
RECORD = ("INSERT INTO plain_outbox (seq, xid, table_name, op, key, old, new, bucket, route_version, at) {source} nextval('plain_seq'),"
          " pg_current_xact_id(), 'public.orders_plpgsql', '{op}', jsonb_build_object('order_id', {row}.order_id), {old}, {new}, NULL, 0,"
          " clock_timestamp()")
INSERTED = {"op": "I", "old": "NULL", "row": "NEW", "new": VALUES.format(row="NEW"), "source": "SELECT"}
UPDATED = {"op": "U", "old": VALUES.format(row="OLD"), "row": "NEW", "new": VALUES.format(row="NEW"), "source": "SELECT"}
SETUP = f"""
CREATE TABLE orders_none ({COLUMNS});
CREATE TABLE orders_plpgsql ({COLUMNS});
CREATE TABLE orders_statement ({COLUMNS});
CREATE TABLE orders_outbox ({COLUMNS});
CREATE TABLE plain_outbox (seq bigint, xid xid8, table_name text, op text, key jsonb, old jsonb, new jsonb, bucket integer,
    route_version integer, at timestamptz);
CREATE SEQUENCE plain_seq;
CREATE FUNCTION record_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        {RECORD.format(**INSERTED)};
    ELSIF TG_OP = 'UPDATE' THEN
        IF (OLD.order_id, OLD.merchant_id, OLD.created_at, OLD.amount) IS DISTINCT FROM (NEW.order_id, NEW.merchant_id, NEW.created_at, NEW.amount) THEN
            {RECORD.format(**UPDATED)};
        END IF;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER record_row AFTER INSERT OR UPDATE OR DELETE ON orders_plpgsql FOR EACH ROW EXECUTE FUNCTION record_row();
CREATE FUNCTION record_rows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    {RECORD.format(**{**INSERTED, "row": "n", "new": VALUES.format(row="n")})} FROM added n;
    RETURN NULL;
END $$;
CREATE TRIGGER record_rows AFTER INSERT ON orders_statement REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION record_rows();
"""
ATTACH = f"SELECT interlock.outbox_attach('orders_outbox', '{{{','.join(LISTED)}}}')"
CONSUME = """
CREATE FUNCTION consume(n int) RETURNS int LANGUAGE sql AS
    'SELECT interlock.outbox_done(array(SELECT seq FROM interlock.outbox_take(n)))';
CREATE TABLE queue (seq bigserial PRIMARY KEY, v int);
CREATE FUNCTION consume_queue(n int) RETURNS int LANGUAGE sql AS $$
    WITH gone AS (DELETE FROM queue WHERE seq IN (SELECT seq FROM queue ORDER BY seq LIMIT n FOR UPDATE SKIP LOCKED) RETURNING 1)
    SELECT count(*)::int FROM gone
$$;
"""
FETCH = "SELECT seq, table_name, op, key::text, old::text, new::text, at FROM interlock.outbox_take(%s)"
ROTATE_EVERY = 50   # batches


class Session:
    """A connection that knows the CPU time of its backend."""

    def __init__(self, instance):
        self.connection = instance.connect()
        self.clock = Path(f"/proc/{self.connection.info.backend_pid}/schedstat")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()

    def execute(self, text, parameters=None, **options):
        return self.connection.execute(text, parameters, **options)

    def cpu(self):
        """Seconds, with the kernel's resolution of nanoseconds."""
        return int(self.clock.read_text().split()[0]) / 1e9

    def timed(self, body):
        """(seconds by the clock, CPU seconds of the backend)"""
        cpu, began = self.cpu(), time.perf_counter()
        body()
        return time.perf_counter() - began, self.cpu() - cpu


class TriggerCost:
    SIDES = ("none", "plpgsql", "outbox")

    def __init__(self, instance, folder, options):
        self.instance, self.options = instance, options
        self.singles, self.turns, self.rows = (5000, 10, 20_000) if options.quick else (40_000, 60, 200_000)
        self.file = folder / "orders.tsv"
        instance.sql(SETUP)
        instance.sql(ATTACH)
        instance.sql(f"COPY ({ROW} FROM generate_series(1, {self.rows}) i) TO '{self.file}'")

    def clean(self, session, side):
        session.execute("SET session_replication_role = replica")
        session.execute(f"TRUNCATE orders_{side}, plain_outbox, interlock.outbox")
        session.execute("RESET session_replication_role")
        session.execute("CHECKPOINT")

    def check_same(self):
        """Both triggers record the same, or the comparison is worth nothing."""
        with Session(self.instance) as session:
            for side in ("plpgsql", "outbox"):
                session.execute(f"INSERT INTO orders_{side} {ROW} FROM generate_series(1, 10) i")
            plain, ours = (session.execute(f"SELECT op, key, old, new->>'order_id', new->>'amount', bucket, route_version FROM {table}"
                                           " ORDER BY seq").fetchall() for table in ("plain_outbox", "interlock.outbox"))
            assert plain == ours and len(ours) == 10, (plain, ours)
            for side in ("plpgsql", "outbox"):
                self.clean(session, side)

    def single(self, session, side):
        text = f"INSERT INTO orders_{side} {ROW} FROM (VALUES (n::bigint)) v(i)"
        return lambda: session.execute(f"DO $$ BEGIN FOR n IN 1..{self.singles} LOOP {text}; END LOOP; END $$"), self.singles

    def clients(self):
        """As measure() for all sides at once: a hundred INSERTs of each in turn, so that what else the machine does
        strikes all alike."""
        sums = {side: [0, 0] for side in self.SIDES}
        sessions = {side: Session(self.instance) for side in self.SIDES}
        for side, session in sessions.items():
            self.clean(session, side)
        for turn in range(self.turns):
            for side in (self.SIDES if turn % 2 == 0 else self.SIDES[::-1]):
                text = f"INSERT INTO orders_{side} {ROW.replace('%', '%%')} FROM (VALUES (%s::bigint)) v(i)"

                def body():
                    for number in range(turn * 100, turn * 100 + 100):
                        sessions[side].execute(text, (number,), prepare=True)
                sums[side] = [total + more for total, more in zip(sums[side], sessions[side].timed(body))]
        for session in sessions.values():
            session.connection.close()
        return {side: [seconds * 1e6 / (self.turns * 100) for seconds in total] for side, total in sums.items()}

    def many(self, session, side):
        return lambda: session.execute(f"INSERT INTO orders_{side} {ROW} FROM generate_series(1, {self.rows}) i"), self.rows

    def copied(self, session, side):
        return lambda: session.execute(f"COPY orders_{side} FROM '{self.file}'"), self.rows

    def unchanged(self, session, side):
        session.execute("SET session_replication_role = replica")
        session.execute(f"INSERT INTO orders_{side} {ROW} FROM generate_series(1, {self.rows}) i")
        session.execute("RESET session_replication_role")
        return lambda: session.execute(f"UPDATE orders_{side} SET note = 'another note'"), self.rows

    def measure(self, way, side):
        """Microseconds a row: by the clock, of CPU."""
        with Session(self.instance) as session:
            self.clean(session, side)
            body, rows = getattr(self, way)(session, side)
            return [seconds * 1e6 / rows for seconds in session.timed(body)]

    def compare(self, way, sides=SIDES):
        runs = {side: [] for side in sides}
        for number in range(self.options.rounds):
            if way == "clients":
                for side, run in self.clients().items():
                    runs[side].append(run)
                continue
            for side in (sides if number % 2 == 0 else sides[::-1]):
                runs[side].append(self.measure(way, side))
        report = {}
        for position, figure in enumerate(("clock_us", "cpu_us")):
            values = {side: [run[position] for run in runs[side]] for side in sides}
            rounds = [(o - n) / (p - n) for n, p, o in zip(*(values[side] for side in self.SIDES))]
            # What other programs add to a run is never negative: the best of each says most on a busy machine.
            none, plain, ours = (min(values[side]) for side in self.SIDES)
            report[figure] = {**{side: round(statistics.median(values[side]), 2) for side in sides},
                              "cost_ratio": {"median_of_rounds": round(statistics.median(rounds), 3),
                                             "of_the_best": round((ours - none) / (plain - none), 3),
                                             "rounds": [round(value, 3) for value in rounds]}}
            if "statement" in sides:
                report[figure]["cost_ratio"]["to_statement_trigger"] = round(
                    (ours - none) / (min(values["statement"]) - none), 3)
        return report

    def report(self):
        self.check_same()
        return {"INSERT, one row": self.compare("single"),
                "INSERT, one row, from a client": self.compare("clients"),
                "INSERT, many rows": self.compare("many", (*self.SIDES, "statement")),
                "COPY": self.compare("copied"),
                "UPDATE of no recorded column": self.compare("unchanged")}


class Drain:
    BATCH = 1000

    def __init__(self, instance, _, options):
        self.instance, self.records = instance, options.records
        instance.sql("CREATE SCHEMA drained; SET search_path = drained; " + f"CREATE TABLE orders ({COLUMNS})")
        instance.sql(f"SELECT interlock.outbox_attach('drained.orders', '{{{','.join(LISTED)}}}', 'drain')")
        instance.sql(CONSUME.replace("outbox_take(n)", "outbox_take(n, ''drain'')"))

    def fill(self):
        self.instance.sql("SET session_replication_role = replica; TRUNCATE drained.orders")
        self.instance.sql(f"INSERT INTO drained.orders {ROW} FROM generate_series(1, {self.records}) i")

    def in_server(self, session):
        return session.execute("SELECT consume(%s)", (self.BATCH,), prepare=True).fetchone()[0]

    def by_client(self, session):
        with session.connection.transaction():
            rows = session.execute(FETCH.replace("(%s)", "(%s, 'drain')"), (self.BATCH,), prepare=True).fetchall()
            session.execute("SELECT interlock.outbox_done(%s)", ([row[0] for row in rows],), prepare=True)
        return len(rows)

    def queue(self, session):
        return session.execute("SELECT consume_queue(%s)", (self.BATCH,), prepare=True).fetchone()[0]

    def until_empty(self, session, way, rotate=True):
        """(records, seconds, CPU seconds) of each batch."""
        batches = []
        while True:
            got = []
            clock, cpu = session.timed(lambda: got.append(way(session)))
            if not got[0]:
                return batches
            batches.append((got[0], clock, cpu))
            if rotate and len(batches) % ROTATE_EVERY == 0:
                session.execute("SELECT interlock.outbox_rotate('drain')")

    def figures(self, batches):
        tenth = max(len(batches) // 10, 1)

        def rate(part, position):
            return sum(batch[0] for batch in part) / sum(batch[position] for batch in part)

        def middle(part, position):
            return statistics.median(batch[position] / batch[0] for batch in part)

        return {"records": sum(batch[0] for batch in batches), "per_second": round(rate(batches, 1)),
                "per_cpu_second": round(rate(batches, 2)),
                # Medians of the batches: one that another program held up says nothing.
                "last_tenth/first_tenth": {"clock": round(middle(batches[-tenth:], 1) / middle(batches[:tenth], 1), 2),
                                           "cpu": round(middle(batches[-tenth:], 2) / middle(batches[:tenth], 2), 2)}}

    def beside(self, what, way):
        self.fill()
        with self.instance.connect() as old, Session(self.instance) as session:
            if what:
                old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                old.execute("SELECT 1 FROM drained.orders LIMIT 1" if what == "snapshot" else
                            "SELECT 1 FROM interlock.outbox LIMIT 1")
            result = self.figures(self.until_empty(session, way))
            old.execute("ROLLBACK")
        with Session(self.instance) as session:
            session.execute("SELECT interlock.outbox_rotate('drain')")
            result["bytes_left"] = self.instance.value("SELECT bytes FROM interlock.outbox_backlog WHERE stream = 'drain'")
        return result

    def consumers(self, number):
        """Records a second of this many at once."""
        self.fill()
        counts, sessions = [0] * number, [Session(self.instance) for _ in range(number)]

        def run(place):
            counts[place] = sum(batch[0] for batch in self.until_empty(sessions[place], self.in_server))

        threads = [threading.Thread(target=run, args=(place,)) for place in range(number)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - began
        for session in sessions:
            session.connection.close()
        assert sum(counts) == self.records, counts
        return round(self.records / seconds)

    def control(self):
        rows = self.records // 10
        self.instance.sql(f"INSERT INTO queue (v) SELECT i FROM generate_series(1, {rows}) i")
        with self.instance.connect() as old, Session(self.instance) as session:
            old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            old.execute("SELECT 1 FROM drained.orders LIMIT 1")
            result = self.figures(self.until_empty(session, self.queue, rotate=False))
            old.execute("ROLLBACK")
        return result

    def report(self):
        return {"batch": self.BATCH, "alone": self.beside(None, self.in_server),
                "beside an old snapshot": self.beside("snapshot", self.in_server),
                "beside an old snapshot with locks": self.beside("locks", self.in_server),
                "fetched by the client": self.beside(None, self.by_client),
                "per_second of consumers at once": {str(number): self.consumers(number) for number in (1, 2, 4)},
                "a plain queue beside an old snapshot": self.control()}


PARTS = {"trigger": TriggerCost, "drain": Drain}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rows, few rounds: to see that it works")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--records", type=int)
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=PARTS)
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 9)
    options.records = options.records or (100_000 if options.quick else 1_000_000)
    with instances_folder() as (folder, owner):
        instance = Postgres(folder, "pg", owner, {**SHARD_SETTINGS, "shared_buffers": "1GB", "jit": "off", "max_wal_size": "8GB",
                                                  "wal_level": "replica"}).start()
        try:
            instance.sql("CREATE DATABASE app", dbname="postgres")
            instance.sql("CREATE EXTENSION interlock")
            print(json.dumps({"settings": {"rounds": options.rounds, "records": options.records, "listed": LISTED},
                              **{name: PARTS[name](instance, folder, options).report() for name in options.only}}, indent=1))
        finally:
            instance.stop("immediate")


if __name__ == "__main__":
    main()
