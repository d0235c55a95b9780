"""A small, fast client of the PostgreSQL protocol: sends prepared bytes, returns what came back.

Not a driver: it keeps rows as the bytes of their DataRow messages, so that two servers' answers can be
compared without being understood.
"""

import re
import socket
import struct

REFUSAL = re.compile(r"^(R\d\d|[A-Z]+(?:_[A-Z]+)+): ")


class Gone(Exception):
    """The connection broke, or nothing came within the time limit."""


class Error:
    """An ErrorResponse or NoticeResponse."""

    def __init__(self, body):
        fields = {}
        for field in body.split(b"\0"):
            if field:
                fields[field[:1]] = field[1:].decode("utf-8", "replace")
        self.sqlstate = fields.get(b"C", "")
        self.message = fields.get(b"M", "")
        self.detail = fields.get(b"D", "")
        self.hint = fields.get(b"H", "")
        self.severity = fields.get(b"V", fields.get(b"S", ""))

    @property
    def refusal(self):
        """The router's code (R10, ROW_BUDGET), or None for an error of the server's."""
        found = REFUSAL.match(self.message)
        return found.group(1) if found else None

    def __str__(self):
        more = "".join(f"; {name}: {text}" for name, text in (("DETAIL", self.detail), ("HINT", self.hint)) if text)
        return f"{self.sqlstate} {self.message}{more}"


class Result:
    """What one statement (or one Execute) gave."""

    __slots__ = ("fields", "rows", "tag", "error", "copied", "parameters")

    def __init__(self):
        self.fields = None      # (name, type OID, type modifier, format) a column
        self.rows = []          # bodies of DataRow messages
        self.tag = None         # None: no CommandComplete came
        self.error = None
        self.copied = None      # CopyData bodies of a COPY TO STDOUT
        self.parameters = None  # type OIDs, of a Describe


class Answer:
    """All that came up to ReadyForQuery."""

    __slots__ = ("results", "status", "notices")

    def __init__(self):
        self.results = []
        self.status = ""
        self.notices = []

    @property
    def error(self):
        return self.results[-1].error if self.results else None

    @property
    def refusal(self):
        error = self.error
        return error.refusal if error else None


def message(kind, body):
    return kind + struct.pack("!i", len(body) + 4) + body


def query(text):
    return message(b"Q", text.encode() + b"\0")


def parse(name, text, types=()):
    return message(b"P", name.encode() + b"\0" + text.encode() + b"\0" +
                   struct.pack(f"!H{len(types)}I", len(types), *types))


def bind(portal, name, values, formats=(), result_formats=()):
    """`values`: bytes or None, one a parameter."""
    parts = [portal.encode() + b"\0" + name.encode() + b"\0",
             struct.pack(f"!H{len(formats)}H", len(formats), *formats), struct.pack("!H", len(values))]
    for value in values:
        parts.append(struct.pack("!i", -1) if value is None else struct.pack("!i", len(value)) + value)
    parts.append(struct.pack(f"!H{len(result_formats)}H", len(result_formats), *result_formats))
    return message(b"B", b"".join(parts))


def describe(kind, name):
    return message(b"D", kind + name.encode() + b"\0")


def execute(portal="", limit=0):
    return message(b"E", portal.encode() + b"\0" + struct.pack("!i", limit))


def close(kind, name):
    return message(b"C", kind + name.encode() + b"\0")


SYNC = message(b"S", b"")
TERMINATE = message(b"X", b"")


class Client:
    """One connection, authenticated by trust. `answer(bytes)` sends and reads to ReadyForQuery."""

    def __init__(self, host, port, database, user, timeout=30.0, **parameters):
        self.socket = socket.create_connection((host, port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        pairs = {"user": user, "database": database, "client_encoding": "UTF8", **parameters}
        body = struct.pack("!i", 196608) + b"".join(
            f"{name}\0{value}\0".encode() for name, value in pairs.items()) + b"\0"
        self.socket.sendall(struct.pack("!i", len(body) + 4) + body)
        while True:
            kind, body = self.read_message()
            if kind == b"R" and body != b"\0\0\0\0":
                raise Gone(f"the server asks for authentication {body[:4]!r}")
            if kind == b"E":
                raise Gone(f"login: {Error(body)}")
            if kind == b"Z":
                break

    def read_message(self):
        buffer = self.buffer
        while True:
            have = len(buffer)
            if have >= 5:
                length = int.from_bytes(buffer[1:5], "big") + 1
                if have >= length:
                    self.buffer = buffer[length:]
                    return buffer[:1], buffer[5:length]
            buffer += self.receive()

    def receive(self):
        try:
            data = self.socket.recv(1 << 16)
        except OSError as error:
            raise Gone(f"{type(error).__name__}: {error}") from None
        if not data:
            raise Gone("the server closed the connection")
        return data

    def answer(self, data):
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise Gone(f"{type(error).__name__}: {error}") from None
        answer, current, buffer, at = Answer(), Result(), self.buffer, 0

        def finish():
            nonlocal current
            answer.results.append(current)
            current = Result()

        while True:
            while len(buffer) - at < 5 or len(buffer) - at <= int.from_bytes(buffer[at + 1:at + 5], "big"):
                buffer, at = buffer[at:] + self.receive(), 0
            end = at + 1 + int.from_bytes(buffer[at + 1:at + 5], "big")
            kind, body = buffer[at], buffer[at + 5:end]
            at = end
            if kind == 68:  # D
                current.rows.append(body)
            elif kind == 67:  # C
                current.tag = body[:-1].decode()
                finish()
            elif kind == 84:  # T
                current.fields = columns(body)
            elif kind == 69:  # E
                current.error = Error(body)
                finish()
            elif kind == 90:  # Z
                answer.status = body.decode()
                break
            elif kind == 78:  # N
                answer.notices.append(Error(body))
            elif kind == 73:  # I
                current.tag = "(empty)"
                finish()
            elif kind == 115:  # s
                current.tag = "(suspended)"
                finish()
            elif kind == 72:  # H
                current.copied = []
            elif kind == 100:  # d
                current.copied.append(body)
            elif kind == 116:  # t
                current.parameters = body
            elif kind == 71:  # G: a COPY FROM nobody should have let through
                self.socket.sendall(message(b"f", b"not now\0"))
            # 1 2 3 n c S A: nothing to compare
        self.buffer = buffer[at:]
        return answer

    def close(self):
        try:
            self.socket.sendall(TERMINATE)
        except OSError:
            pass
        self.socket.close()


def columns(body):
    (count,), at, found = struct.unpack_from("!H", body), 2, []
    for _ in range(count):
        end = body.index(b"\0", at)
        _, _, type_oid, _, modifier, form = struct.unpack_from("!IHIhih", body, end + 1)
        # Types that users made have other numbers in each database.
        found.append((body[at:end].decode("utf-8", "replace"), type_oid if type_oid < 16384 else 0, modifier, form))
        at = end + 19
    return found
