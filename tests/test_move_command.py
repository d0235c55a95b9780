"""`interlock move` as an operator meets it: emptying a shard, what is told meanwhile, going on, taking back, status."""

import json
import re
import signal

import pytest

from support import settled
from support.moves import move_to_its_end
from support.wait import wait_until

EVEN = list(range(0, 16, 2))


@pytest.fixture
def filled(moving):
    moving.fill(moved=0, near=2, far=1)
    return moving


def command(cluster, *arguments, expect=0):
    return move_to_its_end(cluster.catalog_conninfo(), *arguments, expect=expect)


def events(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def owner(cluster, bucket):
    return settled.routes(cluster)[bucket]


def owned_by(cluster, shard):
    return cluster.catalog.value("SELECT array_agg(bucket ORDER BY bucket) FROM interlock.routes WHERE shard = %s", shard)


def test_a_move_tells_a_person_what_it_did(filled):
    done = filled.move(0, "s1")
    (identity,) = re.findall(r"^move ([0-9a-f-]{36}): bucket 0 of keyspace accounts from s0 to s1$", done.stdout, re.M)
    copied = int(re.search(r"^copied (\d+) rows, ", done.stdout, re.M).group(1))
    assert copied > 0
    assert re.search(rf"^verified: {copied} rows, the same on both sides$", done.stdout, re.M), done.stdout
    assert re.search(r"^switched at route version \d+: writers of the buckets waited \d+ ms$", done.stdout, re.M)
    assert re.search(rf"^removed {copied} rows from s0$", done.stdout, re.M), done.stdout
    assert owner(filled, 0) == "s1"
    filled.assert_settled()
    # What is over is told when it is asked for.
    told = command(filled, "--status", identity[:8]).stdout
    assert told.startswith(f"move {identity}: bucket 0 of keyspace accounts from s0 to s1\n  done "), told
    assert command(filled, "--status").stdout == "no move is unfinished\n"


def test_a_program_is_told_each_step_in_json(filled):
    done = filled.move(0, "s1", "--json")
    told = events(done)
    assert {event["move"] for event in told} == {told[0]["move"]}
    assert told[0]["event"] == "begin" and told[0]["buckets"] == [0] and told[0]["resumed"] is False
    steps = [event["step"] for event in told if event["event"] == "step"]
    printed = command(filled, "--steps").stdout.split()
    assert steps and steps == [step for step in printed if step in steps], steps
    assert {"copied", "fenced", "decided", "routed"} <= set(steps)
    switched = next(event for event in told if event["event"] == "switched")
    assert switched["pause_ms"] >= 0 and switched["route_version"] == filled.catalog.value("SELECT route_version FROM interlock.cluster")
    copying = [event for event in told if event["event"] == "copying"]
    assert copying and all(event["estimate"] is None or event["rows"] <= event["estimate"] for event in copying)
    assert told[-1]["event"] == "end" and told[-1]["result"] == "done"
    seconds = [event["seconds"] for event in told]
    assert seconds == sorted(seconds)


def test_a_shard_is_emptied_in_batches_and_the_same_command_goes_on(filled):
    arguments = ("--from", "s0", "--to", "s1", "--batch", 3)
    plan = command(filled, *arguments, "--plan").stdout
    assert "1. buckets 0,2,4\n" in plan and "3. buckets 12,14\n" in plan, plan
    assert owned_by(filled, "s0") == EVEN
    # Killed in the middle of the second batch.
    mover = filled.mover(*arguments, stop="after-copied")
    mover.stopped()
    mover.go_on()
    wait_until(lambda: owner(filled, 0) == "s1", 60)
    wait_until(lambda: filled.catalog.value("SELECT count(*) FROM interlock.moves WHERE finished IS NULL AND buckets = '{6,8,10}'"), 60)
    mover.kill()
    assert owned_by(filled, "s0") in ([6, 8, 10, 12, 14], [12, 14])
    done = command(filled, *arguments)
    assert owned_by(filled, "s0") is None and owned_by(filled, "s1") == list(range(16))
    assert "goes on after step" in done.stdout and done.stdout.endswith("shard s0 has no buckets any more\n"), done.stdout
    filled.assert_settled()
    assert command(filled, *arguments).stdout == "shard s0 has no buckets any more\n"
    command(filled, "--from", "s1", "--to", "s0", "--keyspace", "accounts", "--plan")
    for bucket in EVEN:
        assert owner(filled, bucket) == "s1"
    command(filled, "--keyspace", "accounts", "--bucket", "0-0,2,4,6,8,10,12,14", "--to", "s0")
    assert owned_by(filled, "s0") == EVEN


def test_what_is_held_up_is_given_up_without_harm_and_can_be_gone_on_with_or_taken_back(filled):
    key = filled.groups["moved"][0]
    holder = filled.connect("s0", autocommit=False)
    holder.execute("UPDATE account SET balance = balance WHERE account_id = %s", (key,))
    arguments = ("--max-pause", "300ms", "--tries", 1)
    # The copy waits for transactions that have written, so the holder comes when it is past.
    holder.rollback()
    mover = filled.moving(0, "s1", *arguments, stop="after-copied")
    mover.stopped()
    holder.execute("UPDATE account SET balance = balance WHERE account_id = %s", (key,))
    said = mover.go_on().end(expect=3)
    assert f"process {holder.info.backend_pid} " in said, said
    assert "given up without harm" in said and owner(filled, 0) == "s0"
    identity = filled.move_id()
    status = command(filled, "--status")
    assert identity in status.stdout and "stopped by: " in status.stdout and "has made slot interlock_move_" in status.stdout, status.stdout
    (told,) = events(command(filled, "--status", "--json"))
    assert told["move"] == identity and told["outcome"] is None and told["buckets"] == [0]
    assert f"slot interlock_move_{identity[:8]} on s0" in told["made"]
    # Writers go on as if nothing had been.
    holder.commit()
    assert filled.instances["s0"].value("UPDATE account SET balance = balance WHERE account_id = %s RETURNING account_id", key) == key
    done = command(filled, "--resume", identity[:8])
    assert "goes on after step caught_up" in done.stdout and owner(filled, 0) == "s1", done.stdout
    filled.assert_settled()
    assert command(filled, "--resume").stdout == "nothing to do: no move is unfinished\n"


def test_a_move_that_is_not_decided_is_taken_back(filled):
    filled.moving(0, "s1", stop="after-subscribed").stopped().kill()
    identity = filled.move_id()
    assert command(filled, "--abort", identity[:8]).stdout.endswith(
        "taken back: the buckets stay where they are, and nothing of the move is left\n")
    assert owner(filled, 0) == "s0"
    filled.assert_settled()
    refused = command(filled, "--abort", identity, expect=1)
    assert refused.stderr.startswith(f"ERROR:  move {identity} has ended: aborted"), refused.stderr
    assert command(filled, "--abort", "00000000", expect=1).stderr.startswith("ERROR:  there is no move")


def test_the_targets_server_takes_the_way_to_the_source_that_it_is_told(filled):
    """Another login by another address than the catalog's, as where servers reach each other by a network of their own."""
    source, target = filled.instances["s0"], filled.instances["s1"]
    source.sql("CREATE ROLE carrier SUPERUSER LOGIN", dbname="postgres")
    way = f"hostaddr=127.0.0.1 port={source.port} dbname=app user=carrier application_name='by the side door'"
    before = {name: sorted(rows) for name, rows in vars(filled.rows()).items()}
    try:
        mover = filled.moving(0, "s1", "--source-conninfo", way, stop="after-caught_up").stopped()
        assert target.sql("SELECT subconninfo FROM pg_subscription") == [(way,)]
        assert source.sql("SELECT usename, application_name FROM pg_stat_replication") == [("carrier", "by the side door")]
        mover.go_on().end()
    finally:
        source.sql("DROP ROLE carrier", dbname="postgres")
    assert owner(filled, 0) == "s1"
    filled.assert_settled()
    assert {name: sorted(rows) for name, rows in vars(filled.rows()).items()} == before


def test_a_way_that_leads_to_another_server_than_the_source_is_refused(filled):
    way = filled.instances["s1"].conninfo("app", "postgres")
    done = filled.move(0, "s1", "--source-conninfo", way, expect=1)
    assert "leads to another server" in done.stderr and "--source-conninfo" in done.stderr, done.stderr
    assert owner(filled, 0) == "s0"
    # With the right one it goes on.
    filled.move(0, "s1", "--source-conninfo", filled.instances["s0"].conninfo("app", "postgres"))
    assert owner(filled, 0) == "s1"
    filled.assert_settled()


def test_rows_can_be_kept_at_the_source_until_they_are_cleaned_away(filled):
    filled.move(0, "s1", "--keep-source", "1d")
    kept = filled.instances["s0"].value("SELECT count(*) FROM interlock.misplaced('account')")
    assert kept > 0
    clean = command(filled, "--clean").stdout
    assert "are kept until" in clean and clean.endswith("nothing to do: no move has rows to remove yet\n"), clean
    assert "rows of the buckets are left on s0: interlock move --clean" in command(filled, "--status").stdout
    assert command(filled, "--resume").stdout.startswith("nothing to do: only rows that are kept are left")
    assert f"HINT:  Remove those with --clean {filled.move_id()};" in command(filled, "--abort", filled.move_id(), expect=1).stderr
    # Until then the bucket cannot come back: its rows are still there.
    back = filled.move(0, "s0", expect=1)
    identity = filled.move_id()
    assert back.stderr.startswith("ERROR:  bucket 0 of keyspace \"accounts\" is part of move ") and f"Run: interlock move --clean {identity}\n" in back.stderr, back.stderr
    command(filled, "--clean", identity)
    filled.assert_settled()
    filled.move(0, "s0")


def test_moves_that_others_end_meanwhile_are_done(filled):
    first = filled.moving(0, "s1", stop="after-cleaned").stopped()
    second = filled.moving(1, "s0", stop="after-cleaned").stopped()
    resume = filled.mover("--resume", "--timeout", "60s")
    wait_until(lambda: filled.catalog.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'interlock move'"
                                            " AND query LIKE '%pg_try_advisory_lock%' AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted)"), 30, "it waits for the first")
    # One that ends before its turn comes, and one that ends while it is waited for.
    second.go_on().end()
    first.go_on().end()
    said = resume.end()
    assert "another mover has carried it out meanwhile" in said and re.search("^move [0-9a-f-]{36} has ended meanwhile: done$", said, re.M), said
    filled.assert_settled()


def test_a_shard_whose_buckets_go_elsewhere_is_not_called_empty(make_moving):
    cluster = make_moving(shards=3).up()
    cluster.fill(moved=0, near=3)
    elsewhere = cluster.moving(0, "s2", stop="after-copied").stopped()
    told = f"Move {cluster.move_id()} takes bucket 0 of keyspace \"accounts\" from shard \"s0\" to shard \"s2\"."
    plan = command(cluster, "--from", "s0", "--to", "s1", "--plan", expect=1)
    assert told in plan.stderr and "1. buckets 3,6,9,12,15\n" in plan.stdout, plan.stdout + plan.stderr
    done = command(cluster, "--from", "s0", "--to", "s1", expect=1)
    assert done.stderr.startswith(f"ERROR:  shard \"s0\" is not empty\nDETAIL:  {told}\n"), done.stderr
    assert owned_by(cluster, "s0") == [0] and "any more" not in done.stdout
    # One on its way to it is no better; when both have ended, it is empty.
    comes = cluster.moving(1, "s0", stop="after-copied").stopped()
    elsewhere.go_on().end()
    assert "takes bucket 1 of" in command(cluster, "--from", "s0", "--to", "s1", expect=1).stderr
    comes.go_on().end()
    assert command(cluster, "--from", "s0", "--to", "s1").stdout.endswith("shard s0 has no buckets any more\n")
    cluster.assert_settled()


@pytest.mark.parametrize("point, number, words", [
    ("before-planned", signal.SIGTERM, "go on with it: interlock move --resume {0}; or take it back: interlock move --abort {0}\n"),
    ("after-copied", signal.SIGINT, "go on with it: interlock move --resume {0}; or take it back: interlock move --abort {0}\n"),
    # With the bucket shut it waits until it is open again.
    ("after-fenced", signal.SIGHUP, "go on with it: interlock move --resume {0} (it is decided, and cannot be taken back)\n")])
def test_who_interrupts_a_move_is_told_how_to_go_on(filled, point, number, words):
    mover = filled.moving(0, "s1", "--json", stop=point).stopped()
    identity = filled.move_id()
    mover.process.send_signal(number)
    mover.go_on()
    assert mover.process.wait(60) == -number
    assert ("interlock move: interrupted; " + words.format(identity)) in mover.text()
    assert owner(filled, 0) == ("s1" if point == "after-fenced" else "s0")
    if filled.catalog.value("SELECT count(*) FROM interlock.moves WHERE finished IS NULL"):
        command(filled, "--resume", identity)
    filled.assert_settled()


def test_an_estimate_that_nobody_made_is_unknown(filled):
    def planned():
        arguments = (*filled.arguments(0, "s1"), "--plan")
        tables = {event["table"]: event["estimated_rows"] for event in events(command(filled, *arguments, "--json")) if event["event"] == "table"}
        return tables["public.account"], command(filled, *arguments).stdout

    filled.s0.sql("UPDATE pg_class SET reltuples = -1 WHERE relname = 'account'")
    number, text = planned()
    assert number is None and "public.account: unknown number of rows" in text, (number, text)
    filled.s0.sql("ANALYZE account")
    number, text = planned()
    assert isinstance(number, int) and f"public.account: about {number} rows" in text, (number, text)


def test_a_refused_move_records_nothing(filled):
    filled.instances["s1"].sql("ALTER TABLE account ADD CONSTRAINT extra CHECK (balance < 5000000)")
    try:
        done = filled.move(0, "s1", expect=1)
        assert done.stderr.startswith("ERROR:  constraint extra of table public.account is on shard \"s1\" only\n"), done.stderr
        assert "DETAIL:  There it is: CHECK ((balance < 5000000))." in done.stderr
        assert done.stderr.endswith("interlock move: refused, nothing was changed\n")
        assert filled.catalog.value("SELECT count(*) FROM interlock.moves WHERE finished IS NULL") == 0
        told = events(filled.move(0, "s1", "--json", expect=1))
        assert [event["event"] for event in told] == ["finding", "end"] and told[1]["result"] == "failed"
    finally:
        filled.instances["s1"].sql("ALTER TABLE account DROP CONSTRAINT extra")


@pytest.mark.parametrize("arguments, words", [
    (("--keyspace", "accounts", "--bucket", "1", "--to", "s1"), "bucket 1 of keyspace \"accounts\" is already on shard \"s1\""),
    (("--keyspace", "accounts", "--bucket", "0,1", "--to", "s1"), "buckets 0-1 are not all of one shard"),
    (("--keyspace", "accounts", "--bucket", "16", "--to", "s1"), "keyspace \"accounts\" has no bucket 16"),
    (("--keyspace", "other", "--bucket", "1", "--to", "s1"), "keyspace \"other\" is not published"),
    (("--keyspace", "accounts", "--bucket", "0", "--to", "s9"), "shard \"s9\" is not part of route version"),
    (("--from", "s9", "--to", "s1"), "shard \"s9\" is not part of route version"),
    (("--from", "s0", "--to", "s1", "--keyspace", "other"), "keyspace \"other\" is not published"),
    (("--resume", "zzzz"), "is no id of a move"),
])
def test_what_makes_no_sense_is_refused(moving, arguments, words):
    done = command(moving, *arguments, expect=1)
    assert done.stderr.startswith("ERROR:  ") and words in done.stderr, done.stderr
    assert moving.catalog.value("SELECT count(*) FROM interlock.moves WHERE finished IS NULL") == 0


def test_a_wrong_catalog_is_told_apart_from_one_without_moves(moving):
    shard = moving.instances["s1"].conninfo("app", "postgres")
    for arguments in (["--status"], ["--resume"], ["--abort", "00000000"]):
        done = move_to_its_end(shard, *arguments, expect=1)
        assert done.stderr.startswith("ERROR:  this database is not the catalog\nHINT:  "), done.stderr


def test_the_command_line_is_checked_before_anything_is_connected_to(moving):
    for arguments in (("--to", "s1"), ("--keyspace", "a", "--bucket", "x", "--to", "s1"), ("--plan", "--status"), ("--abort",),
                      ("--from", "s0", "--to", "s1", "--verify", "maybe")):
        done = command(moving, *arguments, expect=2)
        assert done.stderr.startswith("interlock: "), done.stderr
