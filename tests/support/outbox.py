"""A database with an outbox, and consumers of it, for tests of the extension alone (no router, no catalog)."""

import json
from collections import namedtuple
from contextlib import contextmanager
from decimal import Decimal
from functools import partial

from psycopg.types.json import set_json_loads

from .shard import Shard

Record = namedtuple("Record", "seq xid table_name op key old new bucket route_version at")
FIELDS = ", ".join(Record._fields)
Taken = namedtuple("Taken", (*Record._fields, "parked"))
# Of the ring that a stream's records lie in.
SEGMENT, SEGMENTS = 32768, 32
LAP = SEGMENT * SEGMENTS


class Outbox(Shard):
    """A database; `sharded()` makes it a shard as well, with support.shard's keys and buckets."""

    def __init__(self, instance, dbname):
        super().__init__(instance, dbname)
        self.kept = {}

    def create(self):
        # A copy of the module's database takes a fraction of the time of CREATE EXTENSION.
        self.instance.sql(f"CREATE DATABASE {self.dbname} TEMPLATE app", dbname="postgres")
        return self

    def sharded(self):
        return self.describe()

    def connect(self, **options):
        connection = super().connect(**options)
        set_json_loads(partial(json.loads, parse_float=Decimal), connection)
        return connection

    def sql(self, text, *params, user="postgres"):
        """As Postgres.sql(), in a session that is kept for the next call and set back to how it began: a connection
        of its own for each statement is what most of these tests' time went into."""
        session = self.kept.pop(user, None)
        if session is None or session.broken:
            session = self.connect(user=user, prepare_threshold=None)
        try:
            cursor = session.execute(text, params or None)
            while cursor.nextset():
                pass
            rows = cursor.fetchall() if cursor.description else []
            session.execute("DISCARD ALL")
        except BaseException:
            session.close()
            raise
        self.kept[user] = session
        return rows

    def rest(self):
        """Closes the sessions of sql(): for what must have the database to itself."""
        while self.kept:
            self.kept.popitem()[1].close()

    def drop(self):
        self.rest()
        super().drop()

    def value(self, text, *params, user="postgres"):
        rows = self.sql(text, *params, user=user)
        return rows[0][0] if rows else None

    def attach(self, table, columns=None, stream="default", key=None):
        self.sql("SELECT interlock.outbox_attach(%s::text::regclass, %s, %s, %s)", table, columns, stream, key)

    def records(self, stream="default", session=None):
        """What lies in the stream, by seq; takes nothing."""
        text = f"SELECT {FIELDS} FROM interlock.outbox WHERE stream = %s ORDER BY seq"
        rows = session.execute(text, (stream,)).fetchall() if session else self.sql(text, stream)
        return [Record(*row) for row in rows]

    def brief(self, stream="default"):
        """The records as (op, old, new)."""
        return [(record.op, record.old, record.new) for record in self.records(stream)]

    def clear(self, stream="default"):
        """Takes all of it away, and returns it."""
        with self.connect() as session:
            everything = []
            while batch := drain_batch(session, 1000, stream):
                everything += batch
        return everything

    def count(self, stream="default"):
        return self.value("SELECT count(*) FROM interlock.outbox WHERE stream = %s", stream)

    def next_seq(self, seq):
        """The next record gets this number: how a test gets round the ring without a million records."""
        self.sql("SELECT setval('interlock.outbox_seq', %s, false)", seq)


def take(session, limit=1000, stream="default", part=0, parts=1):
    """A batch, in the session's transaction."""
    return [Taken(*row) for row in session.execute(
        f"SELECT {FIELDS}, parked FROM interlock.outbox_take(%s, %s, %s, %s)", (limit, stream, part, parts)).fetchall()]


def done(session, records):
    return session.execute("SELECT interlock.outbox_done(%s::bigint[])", (seqs(records),)).fetchone()[0]


def seqs(records):
    return [record.seq for record in records]


def drain_batch(session, limit=1000, stream="default", **parts):
    """Takes a batch and is done with it, in a transaction of its own."""
    with session.transaction():
        batch = take(session, limit, stream, **parts)
        if batch:
            assert done(session, batch) == len(batch)
    return batch


def rotate(session, stream="default"):
    return session.execute("SELECT interlock.outbox_rotate(%s)", (stream,)).fetchone()[0]


def identity(record):
    """Whose row it is, to be used in a dict."""
    return record.table_name, json.dumps(record.key, sort_keys=True, default=str)


class Mirror:
    """What a consumer knows that keeps the newest record of every row. `faults`: where a record does not follow
    from the one before it."""

    def __init__(self):
        self.rows, self.faults = {}, []

    def apply(self, records):
        for record in records:
            known = self.rows.get(identity(record))
            if record.old != known:
                self.faults.append((known, record))
            if record.new is None:
                self.rows.pop(identity(record), None)
            else:
                self.rows[identity(record)] = record.new
        return self

    def values(self):
        return sorted(self.rows.values(), key=lambda row: json.dumps(row, sort_keys=True, default=str))


def mirrored(records):
    """The rows as a consumer has them after these records, each of which must follow from the one before."""
    mirror = Mirror().apply(records)
    assert not mirror.faults, mirror.faults[:3]
    return mirror.values()


@contextmanager
def transaction(database, **options):
    """A session with a transaction open; rolled back at the end unless the test ends it."""
    with database.connect(**options) as session:
        session.execute("BEGIN")
        yield session
        session.execute("ROLLBACK")
