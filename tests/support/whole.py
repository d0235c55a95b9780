"""The control of the scatter tests: one PostgreSQL database that holds the rows of all shards.

`Whole.both` holds a conversation twice, first with that database, then with the router, and demands the same
answers: what the shards' answers are put together to must be what one server would have said.
"""

from .control import OWN_WORDS, same_conversation
from .pgclient import PgClient
from .pgwire import Column

FIRST_USER = 16384


def same_column(column):
    """Without what differs from database to database: the numbers of tables and of users' types."""
    kind = column.type if column.type < FIRST_USER else FIRST_USER
    return Column(column.name, 0, 0, kind, column.size, column.modifier, column.format)


def comparable(message):
    plain = message.plain()
    if message.kind == "T":
        return message.name, tuple(map(same_column, message.columns))
    if message.kind in "EN" and message.code in OWN_WORDS:
        return message.name, {code: plain[1][code] for code in "SVC"}
    return plain


class Whole:
    """A database `whole` on s0's instance, with the tables of the shards and no router in front of it."""

    def __init__(self, cluster, tables, name="whole"):
        self.cluster, self.name, self.instance = cluster, name, cluster.s0
        self.instance.sql(f"CREATE DATABASE {name}", dbname="postgres")
        self.instance.sql("CREATE EXTENSION interlock", dbname=name)
        self.instance.sql(tables, dbname=name)

    def sql(self, text, *parameters, **options):
        return self.instance.sql(text, *parameters, dbname=self.name, **options)

    def everywhere(self, text):
        """The same on each shard and on the control."""
        for shard in ("s0", "s1"):
            self.cluster.instances[shard].sql(text)
        self.sql(text)

    def gather(self, table):
        """The rows of all shards, and no others."""
        with self.instance.connect(self.name) as target, target.transaction():
            target.execute(f"DELETE FROM {table}")
            for shard in ("s0", "s1"):
                with self.cluster.instances[shard].connect() as source, \
                        source.cursor().copy(f"COPY {table} TO STDOUT") as out, \
                        target.cursor().copy(f"COPY {table} FROM STDIN") as into:
                    for chunk in out:
                        into.write(chunk)

    def client(self, **options):
        """On the control itself; closed when the test ends."""
        client = PgClient(self.instance.port, "app", self.name, **options)
        self.cluster.clients.append(client)
        return client

    def both(self, talk, **options):
        """Runs `talk(client)` with the control and with the router; returns what it returned for the router."""
        return same_conversation(talk, (self.client, self.cluster.pg_client), comparable, **options)
