#!/usr/bin/python3
"""What the output plugin adds to decoding: the same log read through pgoutput and through interlock.

Makes an instance of its own, writes some 200,000 changes, and reads them again and again with
pg_logical_slot_peek_binary_changes through three slots: pgoutput, interlock with every bucket moving
(all of its own work, none saved) and interlock with one bucket in sixteen (what a move has). Prints one
JSON object: processor time of the backend that decodes, the ratios of each round to pgoutput, and their
medians. The bound is 1.1 with every bucket moving. The extension has to be installed in the server that
PG_CONFIG names.

    decoding_bench.py [--quick] [--runs N] [--changes N] [--per-transaction N]
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import psycopg

from guard_cost import Instance

BUCKETS = 1024
SLOTS = {"pgoutput": ("pgoutput", 0), "every_bucket": ("interlock", BUCKETS), "one_in_sixteen": ("interlock", BUCKETS // 16)}
KEYS = {"bigint": "g", "text": "'customer-' || g"}


def fill(session, key_type, value, changes, per_transaction):
    """The table of one keyspace, its slots, and the changes: half inserts, four tenths updates, a tenth deletes."""
    name = f"t_{key_type}"
    hash_name = "splitmix64" if key_type == "bigint" else "xxh3_64"
    every = list(range(BUCKETS))
    session.execute("SELECT interlock.define_keyspace(%s, %s, %s, %s)", (name, key_type, hash_name, BUCKETS))
    session.execute("SELECT interlock.accept_buckets(%s, %s, 1)", (name, every))
    session.execute(f"CREATE TABLE {name} (k {key_type} PRIMARY KEY, owner text, balance bigint, changed timestamptz)")
    session.execute("SELECT interlock.shard_table(%s::regclass, %s, 'k')", (name, name))
    session.execute(f"CREATE PUBLICATION {name} FOR TABLE {name}, interlock.move_marker WITH (publish = 'insert, update, delete')")
    for slot, (plugin, count) in SLOTS.items():
        if plugin == "interlock":
            session.execute("SELECT interlock.record_move_slot(%s, gen_random_uuid(), %s, %s)", (f"{name}_{slot}", name, every[:count]))
        session.execute("SELECT pg_create_logical_replication_slot(%s, %s)", (f"{name}_{slot}", plugin))
    session.execute("SET enable_seqscan = off")  # the table has no statistics yet
    rounds, rows = max(1, changes // per_transaction), per_transaction * 5 // 10
    session.execute(f"""
        DO $$
        BEGIN
            FOR r IN 0 .. {rounds - 1} LOOP
                INSERT INTO {name} SELECT {value}, 'somebody', g, now() FROM generate_series(r * {rows}, r * {rows} + {rows} - 1) g;
                UPDATE {name} SET balance = balance + 1, changed = now()
                 WHERE k = ANY (ARRAY(SELECT {value} FROM generate_series(r * {rows}, r * {rows} + {rows} * 8 / 10 - 1) g));
                DELETE FROM {name} WHERE k = ANY (ARRAY(SELECT {value} FROM generate_series(r * {rows}, r * {rows} + {rows} * 2 / 10 - 1) g));
                COMMIT;
            END LOOP;
        END $$""")


def read(session, name, slot):
    """Processor seconds of one reading, and how many messages came."""
    pid = session.info.backend_pid

    def cpu():
        # Nanoseconds on a processor; /proc/PID/stat counts in hundredths of a second.
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9

    before, began = cpu(), time.monotonic()
    [(count, size)] = session.execute(
        "SELECT count(*), sum(length(data)) FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1', 'publication_names', %s)",
        (f"{name}_{slot}", name)).fetchall()
    return {"cpu": cpu() - before, "wall": time.monotonic() - began, "messages": count, "bytes": int(size)}


def measure(instance, key_type, runs, changes, per_transaction):
    name = f"t_{key_type}"
    conninfo = f"host={instance.folder} port={instance.port} user=postgres dbname=bench"
    with psycopg.connect(conninfo, autocommit=True) as session:
        fill(session, key_type, KEYS[key_type], changes, per_transaction)
        rounds = []
        for number in range(runs + 1):
            order = list(SLOTS) if number % 2 == 0 else list(SLOTS)[::-1]
            rounds.append({slot: read(session, name, slot) for slot in order})
        for slot in SLOTS:
            session.execute("SELECT pg_drop_replication_slot(%s)", (f"{name}_{slot}",))
    del rounds[0]  # warm-up
    if rounds[0]["every_bucket"]["messages"] != rounds[0]["pgoutput"]["messages"]:
        sys.exit("the plugins did not send the same")
    result = {"messages": {slot: rounds[0][slot]["messages"] for slot in SLOTS},
              "cpu_seconds": {slot: round(statistics.median(one[slot]["cpu"] for one in rounds), 4) for slot in SLOTS}}
    for kind in ("cpu", "wall"):
        ratios = {slot: [round(one[slot][kind] / one["pgoutput"][kind], 4) for one in rounds] for slot in SLOTS if slot != "pgoutput"}
        result[f"{kind}_ratio"] = {slot: statistics.median(found) for slot, found in ratios.items()}
        result[f"{kind}_ratios"] = ratios
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer readings of fewer changes: to see that it works")
    parser.add_argument("--runs", type=int)
    parser.add_argument("--changes", type=int)
    parser.add_argument("--per-transaction", type=int, default=20)
    arguments = parser.parse_args()
    arguments.runs = arguments.runs or (3 if arguments.quick else 11)
    arguments.changes = arguments.changes or (40_000 if arguments.quick else 200_000)
    settings = {"wal_level": "logical", "fsync": "off", "shared_buffers": "512MB", "max_wal_size": "8GB", "autovacuum": "off",
                "checkpoint_timeout": "1h", "max_replication_slots": "10"}
    instance = Instance(settings)
    try:
        instance.run("createdb", *instance.connection(), "bench")
        instance.sql("CREATE EXTENSION interlock", "SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 's0')")
        if instance.sql("SELECT count(*) FROM pg_settings WHERE name = 'output_plugin_libraries'").strip() == "1":
            instance.sql("ALTER SYSTEM SET output_plugin_libraries = pgoutput, interlock", "SELECT pg_reload_conf()")
            time.sleep(0.5)
        result = {"settings": {**settings, "changes": arguments.changes, "per_transaction": arguments.per_transaction, "runs": arguments.runs,
                               "buckets": BUCKETS, "server": instance.sql("SHOW server_version").strip(), "cpus": os.cpu_count()}}
        for key_type in KEYS:
            result[key_type] = measure(instance, key_type, arguments.runs, arguments.changes, arguments.per_transaction)
        print(json.dumps(result, indent=1))
    finally:
        instance.stop()


if __name__ == "__main__":
    main()
