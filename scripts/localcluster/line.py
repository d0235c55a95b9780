"""A client of the router's line protocol."""

import json
import socket
from dataclasses import dataclass, field
from urllib.parse import quote, unquote


def encode_field(value):
    """One request field: URL-encoded; None is SQL NULL, the two bytes \\N."""
    if value is None:
        return "\\N"
    if isinstance(value, bytes):
        value = "\\x" + value.hex()
    return quote(str(value), safe="")


@dataclass
class Answer:
    """One answer line, taken apart. `rows` and `msg` come last on the line and may hold spaces."""

    raw: str
    ok: bool
    fields: dict = field(default_factory=dict)
    rows: list | None = None
    msg: str | None = None

    @property
    def code(self):
        return self.fields.get("code")

    @property
    def tag(self):
        return self.fields.get("tag")

    @property
    def shard(self):
        return self.fields.get("shard")

    @property
    def tx(self):
        return self.fields.get("tx")

    @property
    def sqlstate(self):
        return self.fields.get("sqlstate")

    def _number(self, name):
        value = self.fields.get(name)
        return None if value in (None, "none") else int(value)

    @property
    def rv(self):
        return self._number("rv")

    @property
    def pid(self):
        return self._number("pid")

    @property
    def count(self):
        return self._number("count")


def parse_answer(raw):
    word, _, rest = raw.partition(" ")
    if word not in ("OK", "ERR"):
        raise ValueError(f"neither OK nor ERR: {raw[:200]!r}")
    answer = Answer(raw, word == "OK")
    while rest:
        name, equals, after = rest.partition("=")
        if not equals:
            raise ValueError(f"no name=value where one is due: {raw[:200]!r}")
        if name == "rows":
            answer.rows = json.loads(after)
            break
        if name == "msg":
            answer.msg = after
            break
        answer.fields[name], _, rest = after.partition(" ")
    return answer


@dataclass
class Status:
    """STATUS, taken apart: `shards` maps a name to its connection counters."""

    raw: str
    rv: int
    rejected_rv: int | None
    rejected_why: str | None
    catalog: str
    catalog_error: str | None
    clients: int
    buffered: int
    shards: dict


def parse_status(raw):
    answer = parse_answer(raw)
    if not answer.ok:
        raise ValueError(f"STATUS was refused: {raw}")
    known = dict(answer.fields)

    def text(name):
        value = known.pop(name)
        return None if value == "none" else unquote(value)

    rv, clients = int(known.pop("rv")), int(known.pop("clients"))
    rejected = text("rejected_rv")
    status = Status(raw, rv, None if rejected is None else int(rejected), text("rejected_why"),
                    known.pop("catalog"), text("catalog_error"), clients,
                    int(known.pop("buffered")), {})
    for name, counters in known.items():
        if not name.startswith("shard."):
            continue
        pairs = (pair.split(":") for pair in counters.split(","))
        status.shards[name.removeprefix("shard.")] = {key: int(value) for key, value in pairs}
    return status


class LineClient:
    """One connection. Every read has a deadline (`timeout`, seconds)."""

    def __init__(self, host, port, timeout=15.0):
        self.socket = socket.create_connection((host, port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pending = b""

    def send_raw(self, data):
        self.socket.sendall(data)

    def read_line(self):
        """The next line without its newline, or None when the router has closed."""
        while b"\n" not in self.pending:
            chunk = self.socket.recv(1 << 16)
            if not chunk:
                return None
            self.pending += chunk
        line, _, self.pending = self.pending.partition(b"\n")
        return line.decode("utf-8")

    def ask(self, line):
        """Sends one raw line (str or bytes, without newline), returns the raw answer."""
        data = line if isinstance(line, bytes) else line.encode("utf-8")
        self.send_raw(data + b"\n")
        raw = self.read_line()
        if raw is None:
            raise ConnectionError("the router closed the connection without an answer")
        return raw

    @staticmethod
    def request(sql, *params):
        return "\t".join(["Q", encode_field(sql), *(encode_field(p) for p in params)])

    def q(self, sql, *params):
        return parse_answer(self.ask(self.request(sql, *params)))

    def status(self):
        return parse_status(self.ask("STATUS"))

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
