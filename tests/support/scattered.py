"""What the tests of statements over all shards share: the statements, the control, and what must be true afterwards."""

import pytest

from .control import KEY
from .placement import keys_on
from .wait import wait_until
from .whole import Whole

OPTIONS = {"router_settings": {"pg": {}, "pool": {"size": 2}, "scatter": {"timeout": "20s"}}}
INT4, INT8, TEXT = 23, 20, 25
TABLES = """
CREATE TABLE account (account_id bigint PRIMARY KEY, owner text,
                      balance bigint CHECK (balance >= 0), version int);
GRANT SELECT, INSERT, UPDATE, DELETE ON account TO app;
"""
SCATTER = "/* interlock: scatter */ "
ORDERED = SCATTER + "SELECT account_id, owner, balance FROM account ORDER BY account_id DESC LIMIT 30"
SOME = SCATTER + "SELECT account_id, owner FROM account WHERE account_id > $1 ORDER BY account_id LIMIT $2"
TOTALS = SCATTER + "SELECT count(*), sum(balance), min(account_id), max(balance) FROM account"
GROUPS = SCATTER + "SELECT version, count(*) AS many FROM account GROUP BY version ORDER BY version"
PAGE = ("SELECT (item).account_id, (item).owner, cursor, complete, missing_shards"
        " FROM interlock.keyset_page('by_balance', NULL::account, after => $1, page_size => $2)")
FIRST_PAGE = "SELECT * FROM interlock.keyset_page('by_balance', NULL::account, page_size => 13)"
# 8 MB of rows, each too long for a buffer.
LARGE = SCATTER + "SELECT account_id, repeat('x', 200000) AS filler FROM account ORDER BY account_id LIMIT 40"
BALANCE = f"SELECT balance FROM account WHERE account_id = {KEY}"
FAR = keys_on("s1", 20)
KEYSET = ("SELECT interlock.keyset_create('by_balance', 'account', '{}', 'balance DESC, account_id',"
          " max_page => 1000, default_page => 25, signed => false)")


@pytest.fixture(scope="module")
def module_whole(module_cluster):
    whole = Whole(module_cluster, TABLES)
    for name in ("s0", "s1"):
        # Balances are the tests' own; no index has to serve them.
        module_cluster.instances[name].sql(KEYSET)
    whole.sql(KEYSET)
    return whole


@pytest.fixture
def whole(cluster, module_whole):
    """The control, with the rows of the cluster; balances and versions vary, with ties."""
    for name in ("s0", "s1"):
        cluster.instances[name].sql(
            "UPDATE account SET balance = account_id * 7919 % 6 * 100, version = account_id % 3")
    module_whole.gather("account")
    return module_whole


def active(cluster, shard):
    """Backends of the application that are not idle."""
    return cluster.instances[shard].value(
        "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app' AND datname = 'app' AND state <> 'idle'",
        dbname="postgres")


def waiters(cluster, shard="s1"):
    """Backends of the application that wait for a lock."""
    return cluster.instances[shard].value(
        "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app' AND wait_event_type = 'Lock'",
        dbname="postgres")


def settled(cluster):
    """Every connection is back in its pool, and nothing of the application's runs or waits on a shard."""
    def quiet():
        shards = cluster.router.status().shards
        return all(shard["borrowed"] == shard["waiting"] == 0 for shard in shards.values())

    wait_until(quiet, 10, "nothing is borrowed")
    wait_until(lambda: active(cluster, "s0") + active(cluster, "s1") == 0, 10, "nothing runs")


class Locked:
    """The table of one shard is locked: every statement on it waits."""

    def __init__(self, cluster, shard="s1"):
        self.connection = cluster.connect(shard, autocommit=False)

    def __enter__(self):
        self.connection.execute("LOCK TABLE account IN ACCESS EXCLUSIVE MODE")
        return self

    def __exit__(self, *_):
        self.connection.rollback()
