#!/usr/bin/python3
"""keyset_page() beside the row comparison one writes by hand, on one database; as one JSON object.

200,000 orders of one merchant among 400,000, pages of 50 at 40 places of the walk. pgbench, one client, sends
the 40 pages in turn; the places come as variables, so that they are literals in mode simple and parameters in
the modes extended and prepared. All ways take turns, several rounds; compared are the latencies of a page and
the CPU time of the server for one, each round within itself. Then the same for page 1 and page 1,000.
The extension has to be installed in the server that PG_CONFIG names.

    keyset_bench.py [--quick] [--rounds N] [--seconds S] [--only hand late] [--details]
"""

import argparse
import json
import os
import statistics
import subprocess
import time
from pathlib import Path

from bench_cluster import SHARD_SETTINGS, instances_folder
from support.postgres import Postgres

ROWS, MERCHANT, SIZE, PLACES = 400_000, 7, 50, 40
MODES = ("simple", "extended", "prepared")
SETUP = f"""
CREATE TABLE orders (order_id bigint PRIMARY KEY, user_id bigint NOT NULL, merchant_id integer NOT NULL,
    created_at timestamptz NOT NULL, amount numeric(12,2) NOT NULL);
INSERT INTO orders SELECT (i::bigint * 7919) % {ROWS + 1}, i % 300, CASE WHEN i % 2 = 0 THEN {MERCHANT} ELSE i % 6 END,
    '2024-05-01'::timestamptz + (i / 3) * '1 s'::interval, (i % 9999) / 100.0 FROM generate_series(1, {ROWS}) i;
CREATE INDEX orders_newest ON orders (merchant_id, created_at, order_id);
CREATE INDEX orders_mixed ON orders (merchant_id, created_at DESC, order_id);
SELECT interlock.keyset_create('newest', 'orders', '{{merchant_id}}', 'created_at DESC, order_id DESC');
SELECT interlock.keyset_create('newest_unsigned', 'orders', '{{merchant_id}}', 'created_at DESC, order_id DESC',
    signed => false);
SELECT interlock.keyset_create('mixed', 'orders', '{{merchant_id}}', 'created_at DESC, order_id');
"""
BY_HAND = ("SELECT order_id, user_id, merchant_id, created_at, amount FROM orders WHERE merchant_id = :m"
           " AND (created_at, order_id) < (:t{n}, :o{n}) ORDER BY created_at DESC, order_id DESC LIMIT 50;\n")
BY_HAND_MIXED = ("SELECT order_id, user_id, merchant_id, created_at, amount FROM orders WHERE merchant_id = :m"
                 " AND created_at <= :t{n} AND (created_at < :t{n} OR order_id > :o{n})"
                 " ORDER BY created_at DESC, order_id LIMIT 50;\n")
PAGE = "SELECT {columns} FROM interlock.keyset_page('{keyset}', NULL::orders, :s, :{cursor}{n}, NULL, 50) p;\n"
FIRST = "SELECT {columns} FROM interlock.keyset_page('{keyset}', NULL::orders, :s, NULL, NULL, 50) p;\n"
COLUMNS = "(p.item).*, p.cursor"
# What the comparison is made of: where the difference comes from.
DETAILS = {
    "no cursor": PAGE.format(columns="(p.item).*", keyset="newest", cursor="c", n="{n}"),
    "whole item": PAGE.format(columns="p.item, p.cursor", keyset="newest", cursor="c", n="{n}"),
    "count only": PAGE.format(columns="count(*)", keyset="newest", cursor="c", n="{n}"),
    "unsigned": PAGE.format(columns=COLUMNS, keyset="newest_unsigned", cursor="u", n="{n}"),
}


class Bench:
    def __init__(self, instance, folder, options):
        self.instance, self.folder, self.options = instance, folder, options
        with instance.connect() as connection:
            connection.execute(SETUP)
            connection.execute("VACUUM ANALYZE orders")
            connection.execute("CHECKPOINT")
            self.variables = dict(self.places(connection))
        # The processes that are always there: those of connections come and go.
        names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in instance.family()}
        self.servants = {pid for pid, name in names.items() if b"127.0.0.1" not in name}

    def places(self, connection):
        """Names and texts of what stands for itself in every script: quoted, so that it may be a literal."""
        yield "m", str(MERCHANT)
        yield "s", f"'{{\"merchant_id\": {MERCHANT}}}'"
        rows = connection.execute(
            "SELECT created_at, order_id, interlock.keyset_cursor('newest', o), interlock.keyset_cursor('newest_unsigned', o),"
            " interlock.keyset_cursor('mixed', o), n FROM (SELECT *, row_number() OVER (ORDER BY created_at DESC, order_id DESC) n"
            " FROM orders WHERE merchant_id = %s) r JOIN orders o USING (order_id, user_id, merchant_id, created_at, amount)"
            " WHERE n %% %s = 0 ORDER BY n LIMIT %s", (MERCHANT, ROWS // 2 // PLACES - 10, PLACES)).fetchall()
        assert len(rows) == PLACES
        for number, (when, order, *cursors, _) in enumerate(rows):
            yield f"t{number}", f"'{when}'"
            yield f"o{number}", str(order)
            for letter, cursor in zip("cux", cursors):
                yield f"{letter}{number}", f"'{cursor}'"

    def script(self, statement, mode, first=0, count=PLACES):
        """A file with the statement once for each place. In mode simple pgbench would put an integer
        in as it is, but not a text: all are literals there."""
        lines = "".join(statement.replace("{n}", str(number)) for number in range(first, first + count))
        used = {name: text for name, text in self.variables.items() if f":{name}" in lines}
        if mode == "simple":
            for name in sorted(used, key=len, reverse=True):
                lines = lines.replace(f":{name}", used[name])
            used = {}
        path = self.folder / "page.sql"
        path.write_text(lines)
        return path, [word for name, text in used.items() for word in ("-D", f"{name}={text.strip(chr(39))}")]

    def backend_cpu(self):
        """CPU seconds of all backends that have ended, and that the postmaster has noticed."""
        deadline = time.monotonic() + 10
        while set(self.instance.family()) - self.servants:
            assert time.monotonic() < deadline, "backends did not end"
            time.sleep(0.02)
        fields = Path(f"/proc/{self.instance.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")

    def measure(self, statement, mode, **more):
        path, variables = self.script(statement, mode, **more)
        pages = more.get("count", PLACES)
        before = self.backend_cpu()
        done = subprocess.run([str(word) for word in (
            self.instance.bin / "pgbench", "-n", "-M", mode, "-c", 1, "-T", self.options.seconds, "-f", path, *variables,
            "-h", "127.0.0.1", "-p", self.instance.port, "-U", "app", "app")],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr
        transactions = next(int(line.split(":")[1].split("/")[0]) for line in done.stdout.splitlines()
                            if line.startswith("number of transactions actually processed"))
        latency = next(float(line.split("=")[1].split()[0]) for line in done.stdout.splitlines()
                       if line.startswith("latency average"))
        cpu = self.backend_cpu() - before
        return {"latency_us": latency * 1000 / pages, "cpu_us": cpu * 1e6 / (transactions * pages)}

    def compare(self, ways, base):
        """ways: name -> function that measures; the medians, and each way's ratio to `base`: the median of the
        rounds' own ratios."""
        results = {name: [] for name in ways}
        for number in range(self.options.rounds):
            for name in (list(ways) if number % 2 == 0 else list(ways)[::-1]):
                results[name].append(ways[name]())
        report = {name: {figure: round(statistics.median(run[figure] for run in runs), 1) for figure in runs[0]}
                  for name, runs in results.items()}
        for name, runs in results.items():
            if name != base:
                report[f"{name}/{base}"] = {
                    figure: {"median_of_rounds": round(statistics.median(
                        mine[figure] / theirs[figure] for mine, theirs in zip(runs, results[base])), 3),
                        # What other programs add to a run is never negative: the best of each says most on a busy machine.
                        "of_the_best": round(min(run[figure] for run in runs) / min(run[figure] for run in results[base]), 3),
                        "rounds": [round(mine[figure] / theirs[figure], 3) for mine, theirs in zip(runs, results[base])]}
                    for figure in runs[0]}
        return report

    def check_same(self):
        """Both ways return the same rows, or the comparison is worth nothing."""
        with self.instance.connect() as connection:
            for number in (0, PLACES - 1):
                for hand, keyset, cursor in ((BY_HAND, "newest", "c"), (BY_HAND_MIXED, "mixed", "x")):
                    texts = []
                    for text in (hand, PAGE.format(columns="(p.item).*", keyset=keyset, cursor=cursor, n="{n}")):
                        text = text.replace("{n}", str(number))
                        for name in sorted(self.variables, key=len, reverse=True):
                            text = text.replace(f":{name}", self.variables[name])
                        texts.append(text)
                    rows = [connection.execute(text).fetchall() for text in texts]
                    assert rows[0] == rows[1] and len(rows[0]) == SIZE, texts

    def hand(self):
        pages = {"by hand": BY_HAND, "keyset_page": PAGE.format(columns=COLUMNS, keyset="newest", cursor="c", n="{n}")}
        mixed = {"by hand": BY_HAND_MIXED, "keyset_page": PAGE.format(columns=COLUMNS, keyset="mixed", cursor="x", n="{n}")}
        if self.options.details:
            pages.update(DETAILS)

        def compared(statements, mode):
            return self.compare({name: lambda text=text: self.measure(text, mode) for name, text in statements.items()}, "by hand")

        return {**{mode: compared(pages, mode) for mode in MODES}, "mixed directions, prepared": compared(mixed, "prepared")}

    def late(self):
        """Page 1 and the page 1,000 pages later (row 50,000), by themselves."""
        with self.instance.connect() as connection:
            self.variables["c1000"] = "'%s'" % connection.execute(
                "SELECT interlock.keyset_cursor('newest', o) FROM orders o WHERE merchant_id = %s"
                " ORDER BY created_at DESC, order_id DESC OFFSET %s LIMIT 1", (MERCHANT, 999 * SIZE - 1)).fetchone()[0]
        first = FIRST.format(columns=COLUMNS, keyset="newest")
        late = PAGE.format(columns=COLUMNS, keyset="newest", cursor="c", n="{n}")
        offset = ("SELECT order_id, user_id, merchant_id, created_at, amount FROM orders WHERE merchant_id = :m"
                  f" ORDER BY created_at DESC, order_id DESC OFFSET {999 * SIZE} LIMIT 50;\n")
        return self.compare({"page 1": lambda: self.measure(first, "prepared", count=1),
                             "page 1000": lambda: self.measure(late, "prepared", first=1000, count=1),
                             "OFFSET 49950": lambda: self.measure(offset, "prepared", count=1)}, "page 1")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few, short rounds: to see that it works")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--details", action="store_true", help="also what the difference is made of")
    parser.add_argument("--only", nargs="+", default=["hand", "late"], choices=("hand", "late"))
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 9)
    options.seconds = options.seconds or (1 if options.quick else 2)
    with instances_folder() as (folder, owner):
        instance = Postgres(folder, "pg", owner, {**SHARD_SETTINGS, "shared_buffers": "512MB", "jit": "off"}).start()
        try:
            instance.sql("CREATE ROLE app LOGIN SUPERUSER", dbname="postgres")
            instance.sql("CREATE DATABASE app", dbname="postgres")
            instance.sql("CREATE EXTENSION interlock")
            bench = Bench(instance, folder, options)
            bench.check_same()
            print(json.dumps({"settings": {"rows": ROWS, "page": SIZE, "places": PLACES, "rounds": options.rounds,
                                           "seconds": options.seconds, "clients": 1},
                              **{name: getattr(bench, name)() for name in options.only}}, indent=1))
        finally:
            instance.stop("immediate")


if __name__ == "__main__":
    main()
