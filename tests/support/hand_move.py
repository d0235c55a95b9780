"""A move of one bucket made by hand, in SQL, a step at a time: clients meet each of its states for as long as a test likes.

Rows are copied while the bucket is fenced, so nothing needs to be followed.
"""

import threading
import uuid

from psycopg.types.json import Json

from .history import DECLARED


class HandMove:
    """`announce`, `fence`, `decide`, `publish`, in this order; or `unfence`, `withdraw`. `end` tidies up after any of them."""

    def __init__(self, cluster, bucket, keyspace="accounts", tables=tuple(DECLARED)):
        self.cluster, self.bucket, self.keyspace, self.tables = cluster, bucket, keyspace, tables
        self.id = uuid.uuid4()
        self.source_name = cluster.catalog.value(
            "SELECT shard FROM interlock.routes WHERE keyspace = %s AND bucket = %s", keyspace, bucket)
        self.target_name = next(shard for shard in cluster.shards if shard != self.source_name)
        self.source, self.target = (cluster.instances[name] for name in (self.source_name, self.target_name))
        self.version = None
        self.begun = self.decided = self.published = False
        cluster.catalog.sql("SELECT interlock.begin_move(%s, %s, %s, %s, %s, '{}')", self.id, keyspace, [bucket],
                            self.source_name, self.target_name)

    # -- the catalog -----------------------------------------------------------------------------

    def reserve(self):
        self.version = self.cluster.catalog.value("SELECT interlock.reserve_version(%s)", self.id)
        return self

    def announce(self):
        if self.version is None:
            self.reserve()
        self.cluster.catalog.sql("SELECT interlock.announce_move(%s)", self.id)
        return self

    def withdraw(self):
        self.cluster.catalog.sql("SELECT interlock.withdraw_version(%s)", self.id)
        self.version = None
        return self

    def publish(self):
        self.cluster.catalog.sql("SELECT interlock.publish_move(%s)", self.id)
        self.published = True
        return self

    # -- the shards ------------------------------------------------------------------------------

    def fence(self, duration="60 s"):
        if self.version is None:
            self.reserve()
        if not self.begun:
            self.source.sql("SELECT interlock.begin_export(%s, %s, %s, %s)", self.keyspace, [self.bucket], self.target_name, self.id)
            self.target.sql("SELECT interlock.begin_import(%s, %s, %s, %s)", self.keyspace, [self.bucket], self.source_name, self.id)
            self.begun = True
        self.source.sql("SELECT interlock.fence_buckets(%s, %s, %s, %s, %s, %s)", self.keyspace, [self.bucket],
                        self.target_name, self.id, self.version, duration)
        return self

    def unfence(self):
        self.source.sql("SELECT interlock.unfence_buckets(%s)", self.id)
        return self

    def waiting_writers(self, timeout="10 s"):
        return self.source.sql("SELECT pid FROM interlock.wait_for_writers(%s, %s, %s)", self.keyspace, self.id, timeout)

    def copy(self):
        with self.target.connect() as target:
            target.execute("SET interlock.moving_rows = on; SET session_replication_role = replica")
            for table in self.tables:
                for (row,) in self.source.sql(f"SELECT row_to_json(t) FROM {table} t WHERE {self.here()}"):
                    target.execute(f"INSERT INTO {table} SELECT * FROM json_populate_record(NULL::{table}, %s)",
                                   (Json(row),))

    def decide(self):
        """The source gives the bucket away; the target has its rows and takes it."""
        assert self.waiting_writers() == []
        self.copy()
        self.source.sql("SELECT interlock.write_marker(%s)", self.id)
        token = self.source.value("SELECT interlock.decide_handoff(%s)", self.id)
        self.decided = True
        (marker,) = self.source.sql("SELECT move_id, fence, token_hash, written FROM interlock.move_marker WHERE move_id = %s", self.id)
        self.target.sql("INSERT INTO interlock.move_marker (move_id, fence, token_hash, written) VALUES (%s, %s, %s, %s)", *marker)
        self.target.sql("SELECT interlock.activate_import(%s, %s, %s)", self.id, self.version, token)
        return self

    def switch(self):
        """Everything from the fence on."""
        return self.fence().decide().publish()

    def here(self):
        return f"interlock.bucket_of('{self.keyspace}', account_id) = {self.bucket}"

    def forget_rows(self, instance):
        with instance.connect() as shard:
            shard.execute("SET interlock.moving_rows = on; SET session_replication_role = replica")
            for table in self.tables:
                shard.execute(f"DELETE FROM {table} WHERE {self.here()}")

    def end(self):
        """Driven forward once it is decided, else given up; nothing is left of it."""
        outcome = "done"
        if self.decided and not self.published:
            self.publish()
        if not self.decided:
            outcome = "aborted"
            if self.begun:
                self.source.sql("SELECT interlock.abort_export(%s)", self.id)
                self.target.sql("SELECT interlock.abort_import(%s)", self.id)
            if self.version is not None:
                self.withdraw()
        if self.begun:
            self.forget_rows(self.source if self.decided else self.target)
            for instance in (self.source, self.target):
                instance.sql("SELECT interlock.forget_handoff(%s)", self.id)
        self.cluster.catalog.sql("SELECT interlock.finish_move(%s, %s)", self.id, outcome)


class Asked:
    """Something asked in a thread of its own. `answer()` waits for it; `waits()` says that it is still under way."""

    def __init__(self, ask, *arguments, **options):
        self.got, self.error = None, None

        def run():
            try:
                self.got = ask(*arguments, **options)
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def waits(self):
        return self.thread.is_alive()

    def answer(self, deadline=30):
        self.thread.join(deadline)
        assert not self.thread.is_alive(), "there is no answer yet"
        if self.error:
            raise self.error
        return self.got
