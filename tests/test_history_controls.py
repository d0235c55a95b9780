"""The load and its judge against ways to move a bucket that lose writes: they must be found out. And the load on a
cluster where nothing moves, which must be found to be right."""

import pytest

from support.placement import keys_in_bucket

TABLES = {"account": "account_id, owner, balance, version", "posting": "account_id, row_id, token, amount",
          "register": "account_id, number, value"}
MOVED = 0


@pytest.fixture
def cluster(make_moving):
    cluster = make_moving().up()
    cluster.fill(moved=MOVED, near=2, far=1)
    return cluster


def copy_rows(cluster):
    """What a mover without a stream does: the bucket's rows as they are now."""
    copied = 0
    with cluster.s0.connect() as source, cluster.s1.connect() as target:
        for table, columns in TABLES.items():
            with (source.cursor().copy(f"COPY (SELECT {columns} FROM {table} WHERE interlock.bucket_of('accounts', account_id)"
                                       f" = {MOVED}) TO STDOUT") as rows,
                  target.cursor().copy(f"COPY {table} ({columns}) FROM STDIN") as there):
                for row in rows:
                    there.write(row)
                    copied += 1
    return copied


def switch(cluster):
    """And then the route, while shards that would have refused are silenced."""
    cluster.assign([MOVED], "s1")
    version = cluster.publish(allow_owner_change=True)
    cluster.s0.sql("UPDATE interlock.bucket_state SET state = 'moved', peer = 's1', route_version = %s WHERE bucket = %s", version, MOVED)
    # The routers would refuse a shard that has forgotten what it gave away.
    cluster.s0.sql("UPDATE interlock.shard_identity SET floor = %s", version)
    cluster.s1.sql("INSERT INTO interlock.bucket_state (keyspace, bucket, state, route_version) VALUES ('accounts', %s, 'owned', %s)",
                   MOVED, version)
    return version


def without_guard(cluster):
    for shard in (cluster.s0, cluster.s1):
        shard.sql("".join(f"ALTER TABLE {table} DISABLE TRIGGER ALL;" for table in TABLES))


def test_the_load_finds_no_fault_where_nothing_moves(cluster):
    with cluster.load(15) as load:
        load.progress(10)
    load.history.check(cluster.rows())
    load.history.no_failures()
    kinds = load.history.counts()
    assert all(kinds[kind, "ok"] > 20 for kind in ("transfer", "post", "set", "get", "total")), kinds


def test_a_move_that_copies_and_then_switches_loses_writes_and_is_found_out(cluster):
    without_guard(cluster)
    with cluster.load(9) as load:
        load.progress(5)
        assert copy_rows(cluster) > 6
        # These are written where they will not be looked for.
        load.progress(5)
        switch(cluster)
        load.progress(5)
    faults = load.history.faults(cluster.rows())
    lost = [fault for fault in faults if "nothing is there" in fault or "was acknowledged" in fault]
    # Each names what it is about: legs of a transfer, or a register, of (account, ...).
    assert lost and all(any(f"({key}, " in fault for key in keys_in_bucket(MOVED, 6)) for fault in lost), faults[:10]


def test_rows_that_come_twice_are_found_out(cluster):
    """A copy that took what the stream brings as well."""
    with cluster.load(6) as load:
        load.progress(5)
    rows = cluster.rows()
    load.history.check(rows)
    cluster.s0.sql("ALTER TABLE posting DISABLE TRIGGER ALL; INSERT INTO posting (account_id, token, amount)"
                   " SELECT account_id, token, amount FROM posting LIMIT 1")
    assert len(load.history.faults(cluster.rows())) >= 1


def test_a_row_that_is_gone_is_found_out(cluster):
    with cluster.load(6) as load:
        load.progress(5)
    (token,) = cluster.s1.sql("DELETE FROM posting WHERE row_id = (SELECT row_id FROM posting LIMIT 1) RETURNING token")[0]
    assert any(f" {token} " in fault for fault in load.history.faults(cluster.rows()))
