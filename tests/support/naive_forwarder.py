"""A deliberately naive forwarder: the negative control of the routing tests.

It speaks the line protocol's Q requests and trusts everybody: each statement goes to the shard of
the key it mentions (to s0 when it mentions none), over one shared connection a shard, text as it
came. It has the two faults the router exists to end: a transaction's statements may land on
different shards, and session state of one client stays on the connection that the next one gets.

Not a mode of the router, and never one.
"""

import json
import re
import socket
import threading
from urllib.parse import unquote

import psycopg
from psycopg.pq import TransactionStatus

from .placement import reference_shard

KEY_CONDITION = re.compile(r"account_id\s*=\s*\?", re.I)


def naive_key(sql, params):
    """The parameter beside `account_id = ?`, or the first value of an INSERT; None if there is none."""
    found = KEY_CONDITION.search(sql)
    if found:
        return int(params[sql[:found.end()].count("?") - 1])
    return int(params[0]) if sql.lstrip()[:6].upper() == "INSERT" else None


class NaiveForwarder:
    """`conninfo` maps s0 and s1 to connection strings. One client at a time holds no more than it asks."""

    def __init__(self, conninfo):
        self.backends = {name: psycopg.connect(text, autocommit=True) for name, text in conninfo.items()}
        self.locks = {name: threading.Lock() for name in conninfo}
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self.listener.getsockname()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        session = {"begin": False, "last": "s0", "touched": set()}
        with client, client.makefile("rwb") as stream:
            for line in stream:
                _, sql, *params = (unquote(part) for part in line.decode().rstrip("\n").split("\t"))
                try:
                    stream.write((self.run(session, sql, params) + "\n").encode())
                    stream.flush()
                except OSError:
                    break
        # As a pooler does on return: an open transaction is rolled back, session state stays.
        for name in session["touched"]:
            with self.locks[name]:
                if self.backends[name].info.transaction_status != TransactionStatus.IDLE:
                    self.backends[name].execute("ROLLBACK")

    def run(self, session, sql, params):
        verb = sql.split()[0].upper()
        if verb == "BEGIN":
            session["begin"] = True
            return "OK tag=BEGIN shard=none rv=1 tx=T pid=none count=0"
        key = naive_key(sql, params)
        if key is not None:
            session["last"] = reference_shard(key)
        name = session["last"]
        session["touched"].add(name)
        with self.locks[name]:
            backend = self.backends[name]
            try:
                if session["begin"]:
                    backend.execute("BEGIN")
                    session["begin"] = False
                cursor = backend.execute(sql.replace("%", "%%").replace("?", "%s"), params or None)
            except psycopg.Error as error:
                return (f"ERR code=R31 tx=E rv=1 sqlstate={error.sqlstate} shard={name}"
                        f" pid={backend.info.backend_pid} msg={str(error).splitlines()[0]}")
            tx = "I" if backend.info.transaction_status == TransactionStatus.IDLE else "T"
            answer = (f"OK tag={verb} shard={name} rv=1 tx={tx} pid={backend.info.backend_pid}"
                      f" count={max(cursor.rowcount, 0)}")
            if cursor.description:
                answer += " rows=" + json.dumps(cursor.fetchall(), separators=(",", ":"))
            return answer

    def close(self):
        self.listener.close()
        for backend in self.backends.values():
            backend.close()
