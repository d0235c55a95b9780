"""A database that is a shard, for tests of the extension alone (no router, no catalog)."""

import threading
from contextlib import contextmanager

import psycopg

from .wait import wait_until

CLUSTER = "00000000-0000-0000-0000-000000000001"
# Of 16 buckets the shard owns 0 to 7. Keys by bucket (splitmix64):
KEY = {0: 6, 1: 1, 2: 18, 3: 12, 4: 9, 5: 15, 6: 8, 7: 7, 8: 33, 10: 4, 12: 20, 13: 3, 14: 2, 15: 0}
SECOND_KEY = {0: 29, 2: 40, 3: 17, 7: 16, 10: 5, 12: 28, 13: 11, 14: 14, 15: 13}


class Shard:
    def __init__(self, instance, dbname):
        self.instance = instance
        self.dbname = dbname

    def create(self):
        self.instance.sql(f"CREATE DATABASE {self.dbname} TEMPLATE template0", dbname="postgres")
        self.sql("CREATE EXTENSION interlock")
        return self

    def describe(self):
        self.sql(f"""
            SELECT interlock.set_identity('{CLUSTER}', 's0');
            SELECT interlock.define_keyspace('account', 'bigint', 'splitmix64', 16);
            SELECT interlock.accept_buckets('account', '{{0,1,2,3,4,5,6,7}}', 1);
            CREATE TABLE account (account_id bigint PRIMARY KEY, balance bigint);
            SELECT interlock.shard_table('account', 'account', 'account_id');
        """)
        return self

    def drop(self):
        self.instance.sql(f"DROP DATABASE IF EXISTS {self.dbname} WITH (FORCE)", dbname="postgres")

    def connect(self, **options):
        return self.instance.connect(self.dbname, **options)

    def sql(self, text, *params, user="postgres"):
        return self.instance.sql(text, *params, dbname=self.dbname, user=user)

    def value(self, text, *params):
        return self.instance.value(text, *params, dbname=self.dbname)

    def set_state(self, bucket, state):
        """One committed transaction: what a mover (or an operator's hand) does to a bucket."""
        self.sql("INSERT INTO interlock.bucket_state VALUES ('account', %s, %s, 's1', 2) "
                 "ON CONFLICT (keyspace, bucket) DO UPDATE SET state = excluded.state, peer = 's1'", bucket, state)

    def keys(self):
        return [row[0] for row in self.sql("SELECT account_id FROM account ORDER BY 1")]

    def wait_for_lock(self, pid, deadline=20):
        """Until the backend waits for a lock of any kind."""
        wait_until(lambda: self.value("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s", pid),
                   deadline, f"backend {pid} waits for a lock")


@contextmanager
def refusal(code):
    """The body is refused with this SQLSTATE. Yields a list that will hold the error."""
    caught = []
    try:
        yield caught
    except psycopg.Error as error:
        assert error.diag.sqlstate == code, f"expected {code}, got {error.diag.sqlstate}: {error}"
        caught.append(error)
    else:
        raise AssertionError(f"expected {code}, but nothing was refused")


class Background:
    """Runs one statement in a thread; `result()` waits for it and returns None or the error."""

    def __init__(self, connection, text, *params):
        self.error = None
        self.pid = connection.info.backend_pid

        def run():
            try:
                connection.execute(text, params or None)
            except psycopg.Error as error:
                self.error = error

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def result(self, deadline=30):
        self.thread.join(deadline)
        assert not self.thread.is_alive(), "the statement has not ended"
        return self.error

    def code(self):
        error = self.result()
        return error and error.diag.sqlstate
