"""PostgreSQL's frontend/backend protocol, version 3: builds every frontend message, takes apart every backend one.

Written from the protocol's description, not from the router's code, so that the tests have a second opinion.
"""

import struct
from dataclasses import dataclass
from functools import cached_property

PROTOCOL_3_0 = 3 << 16
SSL_REQUEST = (1234 << 16) + 5679
GSS_REQUEST = (1234 << 16) + 5680
CANCEL_REQUEST = (1234 << 16) + 5678

# -- frontend ------------------------------------------------------------------------------------


def text(value):
    """A string as the protocol wants it: its bytes and a NUL."""
    return (value if isinstance(value, bytes) else value.encode()) + b"\0"


def frame(kind, body=b""):
    return kind + struct.pack("!i", len(body) + 4) + body


def untyped(body):
    """A packet of the start of a connection: no type byte."""
    return struct.pack("!i", len(body) + 4) + body


def startup(parameters, version=PROTOCOL_3_0):
    pairs = b"".join(text(name) + text(value) for name, value in parameters.items())
    return untyped(struct.pack("!i", version) + pairs + b"\0")


def ssl_request():
    return untyped(struct.pack("!i", SSL_REQUEST))


def gss_request():
    return untyped(struct.pack("!i", GSS_REQUEST))


def cancel_request(pid, secret):
    return untyped(struct.pack("!iiI", CANCEL_REQUEST, pid, secret))


def query(sql):
    return frame(b"Q", text(sql))


def parse(sql, name="", types=()):
    return frame(b"P", text(name) + text(sql) + struct.pack(f"!H{len(types)}I", len(types), *types))


def value(parameter):
    """A parameter or argument: bytes as they are, None as NULL, anything else as its text."""
    if parameter is None:
        return struct.pack("!i", -1)
    raw = parameter if isinstance(parameter, bytes) else str(parameter).encode()
    return struct.pack("!i", len(raw)) + raw


def formats(codes):
    return struct.pack(f"!H{len(codes)}h", len(codes), *codes)


def bind(parameters=(), statement="", portal="", parameter_formats=(), result_formats=()):
    return frame(b"B", text(portal) + text(statement) + formats(parameter_formats)
                 + struct.pack("!H", len(parameters)) + b"".join(map(value, parameters)) + formats(result_formats))


def describe_statement(name=""):
    return frame(b"D", b"S" + text(name))


def describe_portal(name=""):
    return frame(b"D", b"P" + text(name))


def execute(portal="", limit=0):
    return frame(b"E", text(portal) + struct.pack("!i", limit))


def close_statement(name=""):
    return frame(b"C", b"S" + text(name))


def close_portal(name=""):
    return frame(b"C", b"P" + text(name))


def flush():
    return frame(b"H")


def sync():
    return frame(b"S")


def terminate():
    return frame(b"X")


def password(raw):
    return frame(b"p", raw)


def copy_data(raw):
    return frame(b"d", raw)


def copy_done():
    return frame(b"c")


def copy_fail(reason):
    return frame(b"f", text(reason))


def function_call(oid, arguments=()):
    return frame(b"F", struct.pack("!I", oid) + formats(()) + struct.pack("!H", len(arguments))
                 + b"".join(map(value, arguments)) + struct.pack("!h", 0))


def extended(sql, parameters=(), **options):
    """Parse, Bind, Describe, Execute of the unnamed statement; the caller ends it with sync()."""
    return (parse(sql, types=options.pop("types", ())) + bind(parameters, **options)
            + describe_portal() + execute())


# -- backend -------------------------------------------------------------------------------------

NAMES = {
    "R": "Authentication", "K": "BackendKeyData", "S": "ParameterStatus", "Z": "ReadyForQuery",
    "T": "RowDescription", "t": "ParameterDescription", "D": "DataRow", "C": "CommandComplete",
    "1": "ParseComplete", "2": "BindComplete", "3": "CloseComplete", "n": "NoData", "s": "PortalSuspended",
    "I": "EmptyQueryResponse", "E": "ErrorResponse", "N": "NoticeResponse", "A": "NotificationResponse",
    "G": "CopyInResponse", "H": "CopyOutResponse", "W": "CopyBothResponse", "d": "CopyData", "c": "CopyDone",
    "V": "FunctionCallResponse", "v": "NegotiateProtocolVersion",
}
# Where in the server's source an error was raised says nothing about the error.
SOURCE_FIELDS = "FLR"


class Reader:
    """Reads a message's body from front to back; short bodies raise struct.error or ValueError."""

    def __init__(self, body):
        self.body, self.at = body, 0

    def number(self, code):
        (found,) = struct.unpack_from("!" + code, self.body, self.at)
        self.at += struct.calcsize("!" + code)
        return found

    def text(self):
        end = self.body.index(b"\0", self.at)
        found = self.body[self.at:end].decode()
        self.at = end + 1
        return found

    def value(self):
        length = self.number("i")
        if length < 0:
            return None
        found = self.body[self.at:self.at + length]
        if len(found) != length:
            raise ValueError("a value is longer than its message")
        self.at += length
        return bytes(found)

    def rest(self):
        return bytes(self.body[self.at:])


@dataclass(frozen=True)
class Column:
    name: str
    table: int
    attribute: int
    type: int
    size: int
    modifier: int
    format: int


@dataclass(frozen=True)
class Message:
    """One backend message: `kind` is its type byte as a str."""

    kind: str
    body: bytes

    @property
    def name(self):
        return NAMES[self.kind]

    @cached_property
    def parts(self):
        """What is in it, as plain values: a tuple, a dict of fields for errors and notices."""
        return TAKE_APART[self.kind](Reader(self.body))

    @property
    def fields(self):
        """Of an error or a notice: field code -> text."""
        return self.parts

    @property
    def code(self):
        """SQLSTATE of an error or a notice."""
        return self.parts["C"]

    @property
    def text(self):
        """Message of an error or a notice."""
        return self.parts["M"]

    @property
    def tag(self):
        """Of CommandComplete."""
        return self.parts[0]

    @property
    def status(self):
        """Of ReadyForQuery: I, T or E."""
        return self.parts[0]

    @property
    def values(self):
        """Of DataRow: bytes or None."""
        return self.parts

    @property
    def columns(self):
        """Of RowDescription."""
        return self.parts

    def plain(self):
        """For comparing two servers' answers: what a client can tell apart, without source lines."""
        if self.kind in "EN":
            return self.name, {code: said for code, said in self.fields.items() if code not in SOURCE_FIELDS}
        if self.kind in "Dd" and len(self.body) > 4000:
            return self.name, len(self.body), hash(self.body)
        return self.name, self.parts

    def __repr__(self):
        shown = repr(self.plain())
        return shown if len(shown) < 600 else shown[:600] + "..."


def error_fields(reader):
    found = {}
    while (code := reader.number("c")) != b"\0":
        found[code.decode()] = reader.text()
    return found


def take_values(reader):
    return tuple(reader.value() for _ in range(reader.number("H")))


def take_columns(reader):
    return tuple(Column(reader.text(), *(reader.number(code) for code in "IhIhih"))
                 for _ in range(reader.number("H")))


def take_copy(reader):
    overall = reader.number("b")
    return overall, tuple(reader.number("h") for _ in range(reader.number("H")))


def take_negotiation(reader):
    version = reader.number("i")
    return version, tuple(reader.text() for _ in range(reader.number("i")))


def one_text(reader):
    return (reader.text(),)


def nothing(reader):
    if reader.rest():
        raise ValueError("a message that should be empty is not")
    return ()


TAKE_APART = {
    "R": lambda reader: (reader.number("i"), reader.rest()),
    "K": lambda reader: (reader.number("i"), reader.number("I")),
    "S": lambda reader: (reader.text(), reader.text()),
    "Z": lambda reader: (reader.number("c").decode(),),
    "T": take_columns,
    "t": lambda reader: tuple(reader.number("I") for _ in range(reader.number("H"))),
    "D": take_values,
    "C": one_text,
    "1": nothing, "2": nothing, "3": nothing, "n": nothing, "s": nothing, "I": nothing, "c": nothing,
    "E": error_fields, "N": error_fields,
    "A": lambda reader: (reader.number("i"), reader.text(), reader.text()),
    "G": take_copy, "H": take_copy, "W": take_copy,
    "d": lambda reader: (reader.rest(),),
    "V": lambda reader: (reader.value(),),
    "v": take_negotiation,
}


def split_messages(buffer):
    """The whole messages at the front of the bytearray `buffer`, which are taken out of it."""
    found, at = [], 0
    view = memoryview(buffer)
    try:
        while len(buffer) - at >= 5:
            (length,) = struct.unpack_from("!i", view, at + 1)
            if length < 4:
                raise ValueError(f"message of length {length}: {bytes(view[at:at + 20])!r}")
            if len(buffer) - at < length + 1:
                break
            kind = chr(view[at])
            if kind not in NAMES:
                raise ValueError(f"unknown message type {kind!r}")
            found.append(Message(kind, bytes(view[at + 5:at + 1 + length])))
            at += length + 1
    finally:
        view.release()
    del buffer[:at]
    return found
