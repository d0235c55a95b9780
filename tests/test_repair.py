"""`interlock repair`: finds what is wrong in an index, mends it, and takes no change on its way for a fault."""

import json
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from conftest import remove
from support.indexed import ENTRIES, INDEX, IndexedCluster
from support.moves import move_to_its_end
from support.order_cluster import make_orders
from support.placement import bucket_of
from support.router import BINARY, SLACK, environment
from support.wait import wait_until

COUNT = 3000


class RepairCluster(IndexedCluster):
    """A smaller set of orders. Only the rows and the index matter here: there is no router."""

    def __init__(self, base, owner):
        super().__init__(base, owner, rows=make_orders(COUNT, 100))
        self.samples = []  # buckets can only be given away empty

    def up(self):
        self.make().fill_index()
        return self

    def report(self, *arguments, expect=0):
        """The report and the differences that a repair prints."""
        done = self.index(INDEX, "--json", *arguments, command="repair", check=False)
        assert done.returncode == expect, f"repair exited {done.returncode}:\n{done.stdout}{done.stderr}"
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert lines[-1]["event"] == "report"
        return lines[-1], [line for line in lines if line["event"] == "difference"]

    def start_repair(self, *arguments):
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", BINARY, "repair", INDEX, "--json", "--catalog",
             self.catalog_conninfo(), *map(str, arguments)],
            env=environment({"PGUSER": self.indexer}), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)

    def next_order(self, **values):
        """An order that is not there yet."""
        number = self.idx.value(f"SELECT greatest(%s, max(order_id)) + 1 FROM {ENTRIES}",
                                max(row.order_id for row in self.rows()))
        return self.orders[0]._replace(order_id=number, **values)

    def break_entry(self, order, text, *parameters):
        """What no consumer does: a statement about one entry, in the index itself."""
        self.idx.sql(text.format(ENTRIES) + " WHERE order_id = %s", *parameters, order.order_id)


@pytest.fixture(scope="module")
def module_index(owner, new_folder, router_binary):
    cluster = RepairCluster(new_folder("repair"), owner)
    try:
        yield cluster.up()
    finally:
        cluster.down()
        remove(cluster.base)


@pytest.fixture
def index(module_index):
    yield module_index
    module_index.end_test()
    module_index.restore()


def counts(report):
    return report["missing"], report["stale"], report["mended"]


# -- what a client leaves that writes rows and entries by itself -----------------------------------

DUAL_WRITE = """
import sys, psycopg
shard, index, order = sys.argv[1], sys.argv[2], eval(sys.argv[3])
with psycopg.connect(shard) as connection:
    connection.execute("SET session_replication_role = replica")
    connection.execute("INSERT INTO orders (order_id, user_id, merchant_id, created_at, quantity, status)"
                       " VALUES (%s, %s, %s, %s, 1, 'new')", order)
print("first commit", flush=True)
sys.stdin.readline()
with psycopg.connect(index) as connection:
    connection.execute('INSERT INTO interlock_index."merchant_orders" (order_id, user_id, merchant_id, created_at,'
                       ' interlock_shard, interlock_route_version, interlock_seq, interlock_deleted)'
                       " VALUES (%s, %s, %s, %s, 's0', 0, 0, false)", order)
print("second commit", flush=True)
"""


def dual_write(cluster, order, killed):
    """A program that writes the row and then, in a second transaction, the entry; killed between the two."""
    values = (order.order_id, order.user_id, order.merchant_id, order.created_at.isoformat())
    process = subprocess.Popen([sys.executable, "-c", DUAL_WRITE,
                                cluster.shard_of(order.user_id).conninfo("app", "postgres"),
                                cluster.idx.conninfo("app", "postgres"), repr(values)],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "first commit\n"
    if killed:
        process.kill()
        process.wait(20)
    else:
        assert process.communicate("\n", timeout=20)[0] == "second commit\n"


def test_a_dual_write_killed_between_its_commits_and_a_delete_past_the_outbox(index):
    new = index.next_order()
    dual_write(index, new, killed=False)
    index.equal()  # the control: not killed, it is right
    lost = [new._replace(order_id=new.order_id + number) for number in (1, 2)]
    for order in lost:
        dual_write(index, order, killed=True)
    index.delete(index.orders[5], silently=True)
    before = index.contents()

    report, differences = index.report(expect=3)
    assert counts(report) == (2, 1, 0) and report["pending"] == 0 and report["left"] == 3
    assert report["scanned"] == len(index.rows()) and report["entries"] == len(index.entries())
    assert sorted((item["kind"], item["key"]["order_id"]) for item in differences) == sorted(
        [("missing", lost[0].order_id), ("missing", lost[1].order_id), ("stale", index.orders[5].order_id)])
    assert index.contents() == before, "a dry run has changed the index"

    report, _ = index.report("--apply")
    assert counts(report) == (2, 1, 3) and report["left"] == 0
    index.equal()
    report, differences = index.report()
    assert counts(report) == (0, 0, 0) and not differences
    assert counts(index.report("--apply")[0]) == (0, 0, 0)


# -- kinds of differences ---------------------------------------------------------------------------

def test_other_values_in_an_entry_are_stale_and_become_the_rows(index):
    moved, late = index.orders[10], index.orders[11]
    index.change(moved.user_id, "UPDATE orders SET merchant_id = 99 WHERE order_id = %s", moved.order_id, silently=True)
    index.break_entry(late, "UPDATE {} SET created_at = created_at + interval '1 microsecond'")
    report, differences = index.report(expect=3)
    assert counts(report) == (0, 2, 0)
    assert {item["reason"] for item in differences} == {"other values"}
    found = {item["key"]["order_id"]: item for item in differences}
    assert found[moved.order_id]["row"]["merchant_id"] == 99
    assert found[moved.order_id]["entry"]["merchant_id"] == moved.merchant_id
    index.report("--apply")
    index.equal()


def test_a_tombstone_of_a_row_that_is_there_is_a_missing_entry(index):
    index.break_entry(index.orders[12], "UPDATE {} SET interlock_deleted = true")
    assert counts(index.report("--apply")[0]) == (1, 0, 1)
    index.equal()


def test_an_entry_that_names_another_shard_is_only_told_of(index):
    index.break_entry(index.orders[13], "UPDATE {} SET interlock_shard = 's9'")
    report, differences = index.report()
    assert report["elsewhere"] == 1 and counts(report) == (0, 0, 0) and not differences


def test_mended_entries_are_overwritten_by_later_changes(index):
    revived, moved, gone = index.next_order(), index.orders[14], index.orders[15]
    index.insert(revived, silently=True)
    index.change(moved.user_id, "UPDATE orders SET merchant_id = 98 WHERE order_id = %s", moved.order_id, silently=True)
    index.delete(gone, silently=True)
    assert counts(index.report("--apply")[0]) == (1, 2, 3)
    index.update(revived, merchant_id=97)
    index.delete(moved)
    index.insert(gone._replace(merchant_id=96))
    index.drain()
    index.equal()
    assert counts(index.report()[0]) == (0, 0, 0)


def test_an_index_that_lost_everything_is_filled(index):
    index.idx.sql(f"TRUNCATE {ENTRIES}")
    report, differences = index.report("--chunk", 500, expect=3)
    assert counts(report) == (len(index.orders), 0, 0) and len(differences) == len(index.orders)
    report, _ = index.report("--apply", "--chunk", 500)
    assert counts(report) == (len(index.orders), 0, len(index.orders))
    index.equal()
    assert counts(index.report()[0]) == (0, 0, 0)


def test_an_index_whose_rows_are_all_gone_is_emptied(index):
    for shard in index.shards:
        with index.instances[shard].connect() as connection:
            connection.execute("SET session_replication_role = replica")
            connection.execute("DELETE FROM orders")
    report, _ = index.report("--apply", "--chunk", 300)
    assert counts(report) == (0, len(index.orders), len(index.orders))
    assert not index.entries()
    assert counts(index.report()[0]) == (0, 0, 0)


@pytest.mark.parametrize("chunk", [1, 7, 100_000])
def test_ranges_of_every_size_find_the_same(index, chunk):
    for number, order in enumerate(index.orders[20:60]):
        if number % 2:
            index.delete(order, silently=True)
        else:
            index.break_entry(order, "DELETE FROM {}")
    scope = ["--scope", '{"merchant_id": 3}'] if chunk == 1 else []
    expected = sum(1 for order in index.orders[20:60] if not scope or order.merchant_id == 3)
    report, differences = index.report("--chunk", chunk, *scope, expect=3)
    assert report["missing"] + report["stale"] == expected == len(differences)
    index.report("--apply", "--chunk", chunk, *scope)
    assert counts(index.report(*scope)[0]) == (0, 0, 0)


def test_an_entry_that_the_index_database_refuses_does_not_keep_the_others_from_being_mended(index):
    poison, others = index.orders[61], index.orders[62:80]
    index.change(poison.user_id, "UPDATE orders SET merchant_id = 666 WHERE order_id = %s", poison.order_id, silently=True)
    for order in others:
        index.break_entry(order, "DELETE FROM {}")
    index.idx.sql(f"ALTER TABLE {ENTRIES} ADD CONSTRAINT no_evil CHECK (merchant_id <> 666)")
    try:
        done = index.index(INDEX, "--apply", "--json", command="repair", check=False)
        report = json.loads(done.stdout.splitlines()[-1])
        assert done.returncode == 3 and counts(report) == (len(others), 1, len(others)) and report["left"] == 1
        assert f'could not mend {{"user_id": {poison.user_id}, "order_id": {poison.order_id}}}' in done.stderr
        assert done.stderr.count("no_evil") == 1
    finally:
        index.idx.sql(f"ALTER TABLE {ENTRIES} DROP CONSTRAINT no_evil")
    assert counts(index.report("--apply")[0]) == (0, 1, 1)
    index.equal()


# -- parts --------------------------------------------------------------------------------------------

def test_a_scope_bounds_what_is_read_reported_and_mended(index):
    ours, theirs = ([order for order in index.orders if order.merchant_id == merchant][:4] for merchant in (3, 4))
    for order in ours[:2] + theirs[:2]:
        index.break_entry(order, "DELETE FROM {}")
    for order in ours[2:3] + theirs[2:3]:
        index.delete(order, silently=True)
    # From merchant 4 to 3, unseen: a difference of either.
    index.change(theirs[3].user_id, "UPDATE orders SET merchant_id = 3 WHERE order_id = %s", theirs[3].order_id,
                 silently=True)
    scope = ["--scope", '{"merchant_id": 3}']
    report, _ = index.report(*scope, expect=3)
    assert counts(report) == (2, 2, 0) and report["scope"] == {"merchant_id": 3}
    assert report["scanned"] == sum(1 for row in index.rows() if row.merchant_id == 3)
    assert counts(index.report("--scope", '{"merchant_id": 4}', expect=3)[0]) == (2, 2, 0)
    assert counts(index.report("--apply", *scope)[0]) == (2, 2, 4)
    missing, stale = index.differences()
    assert len(missing) == 2 and len(stale) == 1, "another merchant's entries were mended, or this one's were not"
    assert counts(index.report(*scope)[0]) == (0, 0, 0)
    assert counts(index.report("--apply", "--scope", '{"merchant_id": "4"}')[0]) == (2, 1, 3)
    index.equal()


@pytest.mark.parametrize("scope, words", [
    ("{merchant_id: 3}", "invalid input syntax for type json"),
    ("", "must not be empty"),
    ("3", "a JSON object is wanted"),
    ("[3]", "a JSON object is wanted"),
    ("{}", "it names no column"),
    ('{"merchant": 3}', '"merchant" is not a scope column'),
    ('{"created_at": "2024-01-01"}', '"created_at" is not a scope column'),
    ('{"merchant_id": "many"}', 'invalid input syntax for type bigint: "many"'),
    ('{"merchant_id": 3, "merchant_id": 4}', "named twice"),
    ('{"merchant_id": 1e40}', "out of range"),
])
def test_a_scope_that_is_none_is_refused_clearly(index, scope, words):
    done = index.index(INDEX, "--scope", scope, command="repair", check=False)
    assert done.returncode == 2 and words in done.stderr, done.stderr


def test_one_shard_alone(index):
    chosen = {shard: [order for order in index.orders if index.shard_name(order.user_id) == shard][:2]
              for shard in index.shards}
    for gone, lost in chosen.values():
        index.delete(gone, silently=True)
        index.break_entry(lost, "DELETE FROM {}")
    report, differences = index.report("--shard", "s1", expect=3)
    assert counts(report) == (1, 1, 0) and {item["shard"] for item in differences} == {"s1"}
    assert report["entries"] == sum(1 for entry in index.entries() if index.shard_name(entry[3]) == "s1")
    assert counts(index.report("--shard", "s1", "--apply")[0]) == (1, 1, 2)
    assert counts(index.report(expect=3)[0]) == (2, 2, 0)
    done = index.index(INDEX, "--shard", "s7", command="repair", check=False)
    assert done.returncode == 2 and 'there is no shard "s7"' in done.stderr and "s0, s1, s2" in done.stderr


# -- changes on their way -----------------------------------------------------------------------------

def test_changes_that_are_not_applied_yet_are_pending_and_not_wrong(index):
    new = index.next_order()
    index.insert(new)
    index.update(index.orders[30], merchant_id=95)
    index.delete(index.orders[31])
    before = index.contents()
    report, differences = index.report("--apply", "--wait", "100ms")
    assert counts(report) == (0, 0, 0) and not differences
    assert (report["pending"], report["parked"]) == (3, 0)
    assert index.contents() == before, "what a consumer will do was done by repair"
    index.drain()
    assert index.report()[0]["pending"] == 0
    index.equal()


def test_changes_that_arrive_while_repair_waits_are_looked_at_again(index):
    index.update(index.orders[32], merchant_id=94)
    index.delete(index.orders[33], silently=True)
    repair = index.start_repair("--wait", "30s")
    wait_until(lambda: "difference" in repair.stdout.readline(), 20, "the difference is found")
    index.drain()
    out, err = repair.communicate(timeout=30)
    report = json.loads(out.splitlines()[-1])
    assert repair.returncode == 3 and counts(report) == (0, 1, 0) and report["pending"] == 0, out + err


def test_the_key_of_a_parked_record_is_pending(index):
    order = index.update(index.orders[34], merchant_id=93)
    shard = index.shard_of(order.user_id)
    with shard.connect(autocommit=False) as connection:
        taken = connection.execute("SELECT seq FROM interlock.outbox_take(10, %s)", (INDEX,)).fetchall()
        connection.execute("SELECT interlock.outbox_park(%s, 'for the test')", ([row[0] for row in taken],))
        connection.commit()
    report, _ = index.report("--apply", "--wait", "20s")  # and parked ones are not waited for
    assert counts(report) == (0, 0, 0) and (report["pending"], report["parked"]) == (1, 1)
    assert report["seconds"] < 10
    shard.sql("SELECT interlock.outbox_discard(%s, %s)", INDEX, [row[0] for row in taken])
    assert counts(index.report("--apply")[0]) == (0, 1, 1)
    index.equal()


def test_an_entry_written_between_look_and_mending_is_left_alone(index):
    """The consumer is slow: its transaction has the entry while repair, which has judged it, comes to mend it."""
    order = index.orders[-1]  # no other test may change it: later changes have smaller numbers
    index.change(order.user_id, "UPDATE orders SET merchant_id = 92 WHERE order_id = %s", order.order_id, silently=True)
    with index.idx.connect(autocommit=False) as consumer:
        consumer.execute(f"UPDATE {ENTRIES} SET merchant_id = 92, interlock_seq = interlock_seq + 1000000"
                         " WHERE order_id = %s", (order.order_id,))
        repair = index.start_repair("--apply")
        wait_until(lambda: index.idx.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                                           " AND application_name = 'interlock repair'"), 20, "repair waits")
        consumer.commit()
    out, err = repair.communicate(timeout=30)
    report = json.loads(out.splitlines()[-1])
    assert repair.returncode == 0 and counts(report) == (0, 1, 0) and report["left"] == 0, out + err
    assert index.idx.value(f"SELECT interlock_seq >= 1000000 FROM {ENTRIES} WHERE order_id = %s", order.order_id)


def test_an_older_value_is_never_put_over_a_newer_one(index):
    """As above, but what the consumer brings is not what repair has seen of the row: the newer one stays."""
    order = index.orders[-2]
    index.change(order.user_id, "UPDATE orders SET merchant_id = 91 WHERE order_id = %s", order.order_id, silently=True)
    with index.idx.connect(autocommit=False) as consumer:
        consumer.execute(f"UPDATE {ENTRIES} SET merchant_id = 90, interlock_seq = interlock_seq + 1000000"
                         " WHERE order_id = %s", (order.order_id,))
        repair = index.start_repair("--apply")
        wait_until(lambda: index.idx.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                                           " AND application_name = 'interlock repair'"), 20, "repair waits")
        index.change(order.user_id, "UPDATE orders SET merchant_id = 90 WHERE order_id = %s", order.order_id, silently=True)
        consumer.commit()
    assert repair.wait(30) == 0, repair.communicate()
    index.equal()


def test_tombstones_are_held_while_it_runs(index):
    index.delete(index.orders[37])
    index.drain()
    repair = index.start_repair("--rate", 500, "--chunk", 100)
    wait_until(lambda: repair.stdout.readline(), 20, "it has begun")
    with index.idx.connect() as connection:
        held = connection.execute("SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
                                  " WHERE l.locktype = 'advisory' AND l.mode = 'ShareLock' AND l.granted"
                                  " AND a.application_name = 'interlock repair'").fetchone()[0]
        purged = connection.execute("SELECT interlock.index_purge(%s)", (INDEX,)).fetchone()[0]
    repair.kill()
    repair.communicate()
    assert held == 1 and purged == 0
    index.report("--restart")


# -- each of its looks is needed, in its place ---------------------------------------------------------

def waits(instance):
    return instance.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                          " AND application_name = 'interlock repair'", dbname="postgres")


class Caught:
    """A dry run that has a candidate and has looked at its entry, but not at its row: somebody has locked the table.

    Without that lock there would be no telling between which of its looks a change comes.
    """

    LOCK = "LOCK TABLE orders IN ACCESS EXCLUSIVE MODE"

    def __init__(self, index, order, silently):
        self.index, self.order, self.shard = index, order, index.shard_of(order.user_id)
        first, self.holder = (self.shard.connect(autocommit=False) for _ in range(2))
        if silently:
            first.execute("SET session_replication_role = replica")
        first.execute(self.LOCK)
        # The walk has read the entries and waits for the rows ...
        self.repair = index.start_repair("--wait", "1ms", "--shard", index.shard_name(order.user_id))
        wait_until(lambda: waits(self.shard), 20, "repair waits for the rows")
        # ... the holder waits behind it, so that it comes before the next look ...
        waiting = threading.Thread(target=self.holder.execute, args=(self.LOCK,))
        waiting.start()
        wait_until(lambda: self.shard.value("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %s",
                                            self.holder.info.backend_pid), 20, "the holder waits")
        # ... and what the walk will see of the row is not what it has seen of the entry.
        self.set(first, 81)
        first.commit()
        waiting.join(20)
        wait_until(lambda: waits(self.shard), 20, "repair waits for the row")
        first.close()

    def set(self, connection, merchant):
        connection.execute("UPDATE orders SET merchant_id = %s WHERE order_id = %s", (merchant, self.order.order_id))

    def report(self):
        out, err = self.repair.communicate(timeout=30)
        self.holder.close()
        assert self.repair.returncode in (0, 3), err
        lines = [json.loads(line) for line in out.splitlines()]
        return lines[-1], lines[:-1]


def test_a_change_applied_between_the_looks_at_entry_and_row_is_not_wrong(index):
    caught = Caught(index, index.orders[40], silently=False)
    index.drain()
    caught.holder.rollback()
    report, lines = caught.report()
    assert counts(report) == (0, 0, 0) and report["pending"] == 0, lines
    index.equal()


def test_a_change_made_before_the_look_at_the_row_is_seen_in_the_outbox(index):
    caught = Caught(index, index.orders[41], silently=True)
    caught.set(caught.holder, 82)
    caught.holder.commit()
    report, lines = caught.report()
    assert counts(report) == (0, 0, 0) and report["pending"] == 1, lines
    index.drain()
    index.equal()


def test_a_change_made_and_applied_after_the_look_at_the_row_is_not_wrong(index):
    caught = Caught(index, index.orders[42], silently=True)
    with index.idx.connect(autocommit=False) as consumer, caught.shard.connect(autocommit=False) as source:
        consumer.execute(f"LOCK TABLE {ENTRIES} IN ACCESS EXCLUSIVE MODE")
        caught.holder.rollback()
        wait_until(lambda: waits(index.idx), 20, "repair waits for the entry")
        index.update(caught.order, merchant_id=83)
        taken = source.execute("SELECT seq, route_version, new::text FROM interlock.outbox_take(10, %s)",
                               (INDEX,)).fetchall()
        records = [{"s": seq, "v": version, "op": "U", "r": json.loads(new)} for seq, version, new in taken]
        consumer.execute("SELECT interlock.index_apply(%s, %s, %s)",
                         (INDEX, index.shard_name(caught.order.user_id), json.dumps(records)))
        source.execute("SELECT interlock.outbox_done(%s)", ([seq for seq, *_ in taken],))
        consumer.commit()
        source.commit()
    report, lines = caught.report()
    assert counts(report) == (0, 0, 0) and report["pending"] == 0, lines
    index.equal()


# -- interrupted, twice, down ----------------------------------------------------------------------------

def position(cluster):
    return cluster.idx.value("SELECT (report ->> 'scanned')::int FROM interlock.index_repair WHERE index = %s", INDEX)


def test_a_run_that_was_killed_goes_on_where_it_was(index):
    broken = index.orders[100:400]
    for number, order in enumerate(broken):
        if number % 2:
            index.delete(order, silently=True)
    index.idx.sql(f"DELETE FROM {ENTRIES} WHERE order_id = ANY (%s)", [order.order_id for order in broken[::2]])
    repair = index.start_repair("--apply", "--rate", 400, "--chunk", 50)
    wait_until(lambda: position(index), 30, "a position is kept")
    repair.kill()
    repair.communicate()
    reached = position(index)
    assert 0 < reached < len(index.rows())
    assert any(index.differences()), "it was not killed in the middle"

    report, _ = index.report("--apply")
    assert report["resumed"] and report["left"] == 0
    # All of it, and what had been compared before is not read again.
    assert report["scanned"] == len(index.rows())
    assert report["mended"] == len(broken)
    index.equal()
    assert position(index) is None
    report, _ = index.report()
    assert not report["resumed"] and counts(report) == (0, 0, 0)


def test_a_dry_run_that_was_killed_counts_on_and_restart_begins_anew(index):
    for order in index.orders[400:440]:
        index.delete(order, silently=True)
    repair = index.start_repair("--rate", 400, "--chunk", 50)
    wait_until(lambda: position(index), 30, "a position is kept")
    repair.kill()
    repair.communicate()
    assert index.report("--apply", "--scope", '{"merchant_id": -1}')[0]["resumed"] is False  # another kind of run
    report, differences = index.report(expect=3)
    assert report["resumed"] and counts(report) == (0, 40, 0) and len(differences) <= 40
    repair = index.start_repair("--rate", 400, "--chunk", 50)
    wait_until(lambda: position(index), 30, "a position is kept")
    repair.kill()
    repair.communicate()
    report, differences = index.report("--restart", expect=3)
    assert not report["resumed"] and counts(report) == (0, 40, 0) and len(differences) == 40


def by_key(index):
    return sorted(index.orders, key=lambda order: (order.user_id, order.order_id))


def interrupt(index, *arguments):
    """A run that was killed in the middle, after it had kept a position."""
    repair = index.start_repair(*arguments, "--rate", 400, "--chunk", 50)
    wait_until(lambda: position(index), 30, "a position is kept")
    repair.kill()
    repair.communicate()
    assert 0 < position(index) < len(index.rows())


def test_what_a_killed_run_could_not_mend_or_judge_is_not_forgotten(index):
    poison, parked = by_key(index)[:2]
    index.change(poison.user_id, "UPDATE orders SET merchant_id = 666 WHERE order_id = %s", poison.order_id, silently=True)
    index.update(parked, merchant_id=93)
    shard = index.shard_of(parked.user_id)
    with shard.connect(autocommit=False) as connection:
        taken = connection.execute("SELECT seq FROM interlock.outbox_take(10, %s)", (INDEX,)).fetchall()
        connection.execute("SELECT interlock.outbox_park(%s, 'for the test')", ([row[0] for row in taken],))
        connection.commit()
    index.break_entry(parked, "UPDATE {} SET merchant_id = 94")
    index.idx.sql(f"ALTER TABLE {ENTRIES} ADD CONSTRAINT no_evil CHECK (merchant_id <> 666)")
    try:
        interrupt(index, "--apply")
        report, _ = index.report("--apply", expect=3)
        assert report["resumed"] and counts(report) == (0, 1, 0) and report["left"] == 1
        assert (report["pending"], report["parked"]) == (1, 1)
    finally:
        index.idx.sql(f"ALTER TABLE {ENTRIES} DROP CONSTRAINT no_evil")
    shard.sql("SELECT interlock.outbox_discard(%s, %s)", INDEX, [row[0] for row in taken])
    report, _ = index.report("--apply")
    assert not report["resumed"] and counts(report) == (0, 2, 2)
    index.equal()


def begins_anew(index, why):
    """A row behind the position went past the outbox; the next run must find it."""
    lost = by_key(index)[0]
    index.change(lost.user_id, "UPDATE orders SET merchant_id = 95 WHERE order_id = %s", lost.order_id, silently=True)
    done = index.index(INDEX, "--apply", "--json", command="repair", check=False)
    report = json.loads(done.stdout.splitlines()[-1])
    assert not report["resumed"] and counts(report) == (0, 1, 1) and report["left"] == 0, done.stderr
    assert report["scanned"] == len(index.rows())
    assert "begins anew, and does not go on with the run that began at" in done.stderr and why in done.stderr
    index.equal()


@pytest.mark.parametrize("age", ["25 h", "-1 h"])
def test_a_run_of_yesterday_is_not_gone_on_with(index, age):
    interrupt(index, "--apply")
    index.idx.sql("UPDATE interlock.index_repair SET updated = clock_timestamp() - %s::interval", age)
    begins_anew(index, "it was interrupted more than a day ago")


@pytest.mark.parametrize("name", ["s1", "idx"])
def test_a_run_from_before_a_restore_is_not_gone_on_with(index, name):
    """The server comes back on another timeline, as after the recovery of a backup."""
    interrupt(index, "--apply")
    server = index.instances[name]
    server.stop()
    (server.data / "standby.signal").touch()
    server.start()
    assert server.value("SELECT pg_promote()", dbname="postgres")
    begins_anew(index, f"the database of {name} is another, or was restored")


def test_a_catalog_that_is_away_does_not_end_it(index):
    """A key that is being changed may have moved, so newer routes are asked for."""
    order = index.orders[46]
    caught = Caught(index, order, silently=True)
    # It is in the same database as a shard; the sessions that are there stay.
    index.catalog.sql(f"ALTER ROLE {index.indexer} CONNECTION LIMIT 0")
    try:
        with index.idx.connect() as writer:
            # The entry is another one at the second look than at the first: repair waits for the row in between.
            writer.execute(f"UPDATE {ENTRIES} SET merchant_id = 81 WHERE order_id = %s", (order.order_id,))
        caught.holder.commit()
        out, err = caught.repair.communicate(timeout=30)
        caught.holder.close()
    finally:
        index.catalog.sql(f"ALTER ROLE {index.indexer} CONNECTION LIMIT -1")
    assert caught.repair.returncode == 0 and err.count("the catalog does not answer") == 1, err
    report = json.loads(out.splitlines()[-1])
    assert counts(report) == (0, 0, 0) and report["left"] == 0
    index.equal()


def test_two_at_once_are_refused(index):
    repair = index.start_repair("--rate", 300, "--chunk", 50)
    try:
        wait_until(lambda: repair.stdout.readline(), 20, "it has begun")
        done = index.index(INDEX, "--apply", command="repair", check=False)
        assert done.returncode == 1 and 'another "interlock repair"' in done.stderr
    finally:
        repair.kill()
        repair.communicate()
    wait_until(lambda: index.index(INDEX, "--restart", command="repair", check=False).returncode == 0, 20,
               "the lock of the killed one is gone")


def test_the_rate_is_kept(index):
    began = time.monotonic()
    report, _ = index.report("--rate", 2000)
    assert time.monotonic() - began >= (report["scanned"] - 400) / 2000


@pytest.mark.parametrize("name", ["s1", "idx"])
def test_a_server_that_goes_down_ends_it_with_an_error_and_the_next_run_goes_on(index, name):
    for order in index.orders[500:510]:
        index.delete(order, silently=True)
    repair = index.start_repair("--apply", "--rate", 400, "--chunk", 50)
    wait_until(lambda: position(index), 30, "a position is kept")
    index.instances[name].restart("immediate")
    _, err = repair.communicate(timeout=30)
    assert repair.returncode == 1 and "ERROR:" in err and "goes on from there" in err
    report, _ = index.report("--apply")
    assert report["resumed"] and report["left"] == 0
    index.equal()


def test_errors_have_a_status_and_say_what_is_wrong(index):
    def run(*arguments):
        return index.index(*arguments, command="repair", check=False)

    done = run("no_such_index")
    assert done.returncode == 1 and 'index "no_such_index" is not published' in done.stderr
    assert run().returncode == 2 and run(INDEX, "more").returncode == 2
    for wrong in (["--rate", "0"], ["--rate", "fast"], ["--chunk", "-1"], ["--wait", "soon"], ["--appply"]):
        assert run(INDEX, *wrong).returncode == 2, wrong


def test_a_person_reads_a_summary(index):
    for order in index.orders[600:630]:
        index.delete(order, silently=True)
    done = index.index(INDEX, command="repair", check=False)
    assert done.returncode == 3
    lines = done.stdout.splitlines()
    assert sum(line.startswith("stale (no row)") for line in lines) == 20
    assert lines[-2].startswith(f"{INDEX}: ") and "missing 0, stale 30, pending 0, mended 0" in lines[-2]
    assert "nothing was changed" in lines[-1]
    done = index.index(INDEX, "--verbose", command="repair", check=False)
    assert sum(line.startswith("stale (no row)") for line in done.stdout.splitlines()) == 30


# -- beside everything else --------------------------------------------------------------------------------

class Writers:
    """Threads that insert, change, move, delete and re-insert orders of their own, until told to end."""

    def __init__(self, cluster, count=3):
        self.cluster, self.ended, self.changes = cluster, threading.Event(), 0
        self.pool = ThreadPoolExecutor(count)
        self.futures = [self.pool.submit(self.write, number, count) for number in range(count)]

    def write(self, number, count):
        chance = random.Random(number)
        mine = self.cluster.orders[number:300:count]  # few: the same rows again and again
        there = {order.order_id: order for order in mine}
        connections = {shard: self.cluster.instances[shard].connect() for shard in self.cluster.shards}
        while not self.ended.is_set():
            order = chance.choice(mine)
            connection = connections[self.cluster.shard_name(order.user_id)]
            if order.order_id not in there:
                marks = ", ".join(["%s"] * len(order))
                connection.execute(f"INSERT INTO orders VALUES ({marks})", order)
                there[order.order_id] = order
            elif chance.random() < 0.3:
                connection.execute("DELETE FROM orders WHERE order_id = %s", (order.order_id,))
                del there[order.order_id]
            else:
                connection.execute("UPDATE orders SET merchant_id = %s, created_at = created_at + %s"
                                   " WHERE order_id = %s", (chance.randint(1, 10), timedelta(seconds=1), order.order_id))
            self.changes += 1
        for connection in connections.values():
            connection.close()

    def end(self):
        self.ended.set()
        for future in self.futures:
            future.result(30)
        self.pool.shutdown()


def test_under_writers_and_consumers_nothing_right_is_reported_and_all_wrong_is_mended(index):
    for _ in range(2):
        index.consumer()
    writers = Writers(index)
    try:
        pending = 0
        for _ in range(12):
            report, differences = index.report("--chunk", 200, "--wait", "1ms")
            assert counts(report) == (0, 0, 0), f"a change on its way was taken for a fault: {differences[:3]}"
            pending += report["pending"]
        # Rows that the writers leave alone.
        broken = index.orders[1000:1060]
        index.idx.sql(f"DELETE FROM {ENTRIES} WHERE order_id = ANY (%s)", [order.order_id for order in broken[::2]])
        for order in broken[1::2]:
            index.delete(order, silently=True)
        assert counts(index.report("--chunk", 200, expect=3)[0]) == (30, 30, 0)
        for round in range(6):
            report, _ = index.report("--chunk", 200, "--apply")
            assert counts(report) == ((30, 30, 60) if round == 0 else (0, 0, 0))
            assert report["left"] == 0
        assert writers.changes > 500
    finally:
        writers.end()
    index.drained()
    index.end_consumers()
    index.equal()
    assert counts(index.report()[0]) == (0, 0, 0)


def test_while_buckets_move_nothing_right_is_reported(index):
    """Each move makes a new route version, and the shard that gave the bucket away refuses the old one. Meanwhile rows are on
    both shards."""
    for shard in index.shards:
        # Their primary keys do not have the shard key.
        index.instances[shard].sql("ALTER TABLE orders REPLICA IDENTITY FULL; ALTER TABLE sample REPLICA IDENTITY FULL")
    index.delete(index.orders[700], silently=True)
    repair = index.start_repair("--rate", 400, "--chunk", 50)
    wait_until(lambda: position(index), 30, "it has begun")
    owners = index.owners()
    for bucket in (0, 1):
        move_to_its_end(index.catalog.conninfo("app", "postgres"), "--keyspace", "accounts", "--bucket", bucket,
                        "--to", "s2" if owners[bucket] != "s2" else "s0")
    out, err = repair.communicate(timeout=120 * SLACK)
    report = json.loads(out.splitlines()[-1])
    assert repair.returncode == 3, out + err
    assert counts(report) == (0, 1, 0) and report["pending"] == 0
    assert report["elsewhere"] > 0, "no bucket had moved before its entries were read"
    assert counts(index.report("--apply")[0]) == (0, 1, 1)
    index.equal()


def test_a_change_left_in_the_outbox_of_the_former_owner_is_pending(index):
    order = next(order for order in index.orders if index.owners()[bucket_of(order.user_id)] == "s0")
    bucket = bucket_of(order.user_id)
    # The bucket can only be given away when it is empty, so what it holds goes first, each delete with its record.
    index.update(order, merchant_id=89)
    index.move_bucket(bucket, "s1")
    report, differences = index.report("--wait", "1ms", "--apply")
    assert counts(report) == (0, 0, 0) and report["pending"] == 1, differences
    index.drain()
    assert index.report()[0]["pending"] == 0
    index.equal()


def test_rows_that_a_move_has_left_behind_are_not_looked_at(index):
    """Until a move is cleaned up, its rows are on both shards."""
    order = index.orders[44]._replace(merchant_id=77)
    other = next(shard for shard in index.shards if shard != index.shard_name(order.user_id))
    bucket = (bucket_of(order.user_id),)

    def change(text, *parameters):
        with index.instances[other].connect() as connection, connection.transaction():
            connection.execute("SET LOCAL session_replication_role = replica")
            # The guard takes the bucket for the shard's own; this is over before anybody else sees it.
            before = connection.execute("DELETE FROM interlock.bucket_state WHERE bucket = %s RETURNING *", bucket).fetchone()
            connection.execute("INSERT INTO interlock.bucket_state (keyspace, bucket, state, route_version)"
                               " VALUES ('accounts', %s, 'owned', 0)", bucket)
            connection.execute(text, parameters)
            connection.execute("DELETE FROM interlock.bucket_state WHERE bucket = %s", bucket)
            if before:
                connection.execute(f"INSERT INTO interlock.bucket_state VALUES ({', '.join(['%s'] * len(before))})", before)

    change(f"INSERT INTO orders VALUES ({', '.join(['%s'] * len(order))})", *order)
    try:
        report, differences = index.report()
        assert counts(report) == (0, 0, 0) and report["scanned"] == len(index.orders), differences
    finally:
        change("DELETE FROM orders WHERE order_id = %s", order.order_id)
