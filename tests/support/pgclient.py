"""A client that speaks PostgreSQL's protocol byte by byte: it may do what no driver would."""

import base64
import hashlib
import hmac
import os
import socket
import ssl
import time

from . import pgwire
from .pgwire import Message


class Closed(ConnectionError):
    """The other side closed the connection; `messages` came before that."""

    def __init__(self, messages):
        super().__init__(f"closed after {messages}")
        self.messages = messages


class LoginRefused(Exception):
    """The ErrorResponse that ended a start-up."""

    def __init__(self, message):
        super().__init__(repr(message))
        self.message = message
        self.code = message.code


class Answer(list):
    """The messages of one round, up to and with ReadyForQuery, and what tests ask of them."""

    def of(self, kind):
        return [message for message in self if message.kind == kind]

    @property
    def kinds(self):
        return "".join(message.kind for message in self)

    @property
    def rows(self):
        return [message.values for message in self if message.kind == "D"]

    @property
    def value(self):
        """The first column of the first row, as text."""
        first = self.rows[0][0]
        return None if first is None else first.decode()

    @property
    def tags(self):
        return [message.tag for message in self if message.kind == "C"]

    @property
    def tag(self):
        (only,) = self.tags
        return only

    @property
    def status(self):
        return self[-1].status

    @property
    def errors(self):
        return self.of("E")

    @property
    def error(self):
        (only,) = self.errors
        return only

    @property
    def codes(self):
        return [message.code for message in self.errors]

    @property
    def notices(self):
        return self.of("N")

    @property
    def parameters(self):
        """ParameterStatus messages: name -> value."""
        return dict(message.parts for message in self.of("S"))

    def plain(self):
        return [message.plain() for message in self]

    def ok(self):
        """Itself, once it is known to hold no error."""
        assert not self.errors, self
        return self

    def refused(self, code, status=None):
        """Itself, once it is known to hold exactly one error with this SQLSTATE."""
        assert self.codes == [code], f"expected {code}: {self}"
        assert status is None or self.status == status, f"expected status {status}: {self}"
        return self


class PgClient:
    """One connection. Every wait has a deadline of `timeout` seconds."""

    def __init__(self, port, user="app", database="app", *, host="127.0.0.1", password=None, tls=None,
                 timeout=15.0, version=pgwire.PROTOCOL_3_0, login=True, receive_buffer=None, **parameters):
        self.timeout = timeout
        self.peer = (host, port)
        self.user, self.password = user, password
        self.pending = bytearray()
        self.parsed = []
        self.parameters = {}
        self.record = None  # a list: every message is noted there too
        self.key = None
        if receive_buffer is None:
            self.socket = socket.create_connection((host, port), timeout=timeout)
        else:
            # The size of the window is agreed on when connecting.
            self.socket = socket.socket()
            self.socket.settimeout(timeout)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            self.socket.connect((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if tls is not None:
                self.start_tls(tls)
            if login:
                self.greeting = self.log_in({"user": user, "database": database, **parameters}, version)
        except BaseException:
            self.socket.close()
            raise

    # -- start-up --------------------------------------------------------------------------------

    def start_tls(self, context=None):
        """SSLRequest and the handshake; `context` may be True for one that checks nothing."""
        if context in (None, True):
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.send(pgwire.ssl_request())
        answer = self.read_raw(1)
        assert answer == b"S", f"TLS was declined with {answer!r}"
        self.socket = context.wrap_socket(self.socket, server_hostname=self.peer[0])

    def log_in(self, parameters, version=pgwire.PROTOCOL_3_0):
        """Start-up packet to ReadyForQuery; the messages after authentication."""
        self.send(pgwire.startup(parameters, version))
        answer = Answer()
        while True:
            message = self.receive()
            if message.kind == "R":
                self.authenticate(*message.parts)
                continue
            if message.kind == "E":
                raise LoginRefused(message)
            answer.append(message)
            if message.kind == "K":
                self.key = message.parts
            if message.kind == "Z":
                return answer

    @property
    def pid(self):
        """As BackendKeyData says: of the router's session, not of a backend."""
        return self.key[0]

    def authenticate(self, kind, body):
        if kind == 0:
            return
        if kind == 3:
            self.send(pgwire.password(pgwire.text(self.password)))
        elif kind == 5:
            inner = hashlib.md5((self.password + self.user).encode()).hexdigest().encode()
            self.send(pgwire.password(pgwire.text("md5" + hashlib.md5(inner + body).hexdigest())))
        elif kind == 10:
            assert b"SCRAM-SHA-256" in body.split(b"\0"), body
            self.scram_first = f"n=,r={base64.b64encode(os.urandom(18)).decode()}"
            first = b"n,," + self.scram_first.encode()
            self.send(pgwire.password(pgwire.text("SCRAM-SHA-256") + pgwire.value(first)))
        elif kind == 11:
            self.send(pgwire.password(self.scram_proof(body.decode())))
        elif kind == 12:
            assert body == b"v=" + base64.b64encode(self.scram_expected), "the server does not know the verifier"
        else:
            raise AssertionError(f"authentication method {kind} is not asked of a test")

    def scram_proof(self, challenge):
        given = dict(item.split("=", 1) for item in challenge.split(","))
        assert given["r"].startswith(self.scram_first.partition("r=")[2])
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), base64.b64decode(given["s"]), int(given["i"]))
        final = f"c=biws,r={given['r']}"
        signed = f"{self.scram_first},{challenge},{final}".encode()

        def mac(key, message):
            return hmac.digest(key, message, "sha256")

        client_key = mac(salted, b"Client Key")
        proof = bytes(a ^ b for a, b in zip(client_key, mac(hashlib.sha256(client_key).digest(), signed)))
        self.scram_expected = mac(mac(salted, b"Server Key"), signed)
        return f"{final},p={base64.b64encode(proof).decode()}".encode()

    # -- bytes -----------------------------------------------------------------------------------

    def send(self, *messages):
        self.socket.sendall(b"".join(messages))

    def send_split(self, data, *places):
        """Sends `data` in pieces that end at `places`, each a segment of its own."""
        for start, end in zip((0, *places), (*places, len(data))):
            self.socket.sendall(data[start:end])
            if end < len(data):
                # With TCP_NODELAY each piece goes out at once; give the reader time to see it alone.
                time.sleep(0.0005)

    def read_raw(self, count):
        """`count` bytes that are no messages (the answer to SSLRequest)."""
        while len(self.pending) < count:
            self.read_some(time.monotonic() + self.timeout)
        found = bytes(self.pending[:count])
        del self.pending[:count]
        return found

    def read_some(self, end):
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no whole message within {self.timeout} s; so far {bytes(self.pending[:200])!r}")
        self.socket.settimeout(left)
        try:
            chunk = self.socket.recv(1 << 18)
        except TimeoutError:
            raise TimeoutError(f"nothing within {self.timeout} s; so far {bytes(self.pending[:200])!r}") from None
        except (ConnectionResetError, BrokenPipeError):
            chunk = b""
        finally:
            self.socket.settimeout(self.timeout)
        if not chunk:
            raise Closed([])
        self.pending += chunk

    # -- messages --------------------------------------------------------------------------------

    def receive(self, timeout=None) -> Message:
        """The next message of any kind; ParameterStatus is also noted in `parameters`."""
        end = time.monotonic() + (self.timeout if timeout is None else timeout)
        while not self.parsed:
            self.parsed = pgwire.split_messages(self.pending)
            if not self.parsed:
                self.read_some(end)
        message = self.parsed.pop(0)
        if message.kind == "S":
            self.parameters.update([message.parts])
        if self.record is not None:
            self.record.append(message)
        return message

    def until(self, kinds, timeout=None) -> Answer:
        """All messages up to the first of one of `kinds`."""
        end = time.monotonic() + (self.timeout if timeout is None else timeout)
        answer = Answer()
        while True:
            try:
                answer.append(self.receive(end - time.monotonic()))
            except Closed:
                raise Closed(answer) from None
            except TimeoutError as late:
                raise TimeoutError(f"{late}; after {answer}") from None
            if answer[-1].kind in kinds:
                return answer

    def until_ready(self, timeout=None) -> Answer:
        return self.until("Z", timeout)

    def until_closed(self, timeout=None) -> Answer:
        """All messages up to the end of the connection, which must come within the deadline."""
        try:
            answer = self.until("", timeout)
        except Closed as closed:
            return closed.messages
        raise AssertionError(f"not closed: {answer}")

    def silent(self, seconds=0.1):
        """Whether nothing arrives for a while (what has arrived already counts)."""
        if self.parsed or self.pending:
            return False
        self.socket.settimeout(seconds)
        try:
            self.pending += self.socket.recv(1 << 16)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(self.timeout)
        return False

    def query(self, sql, timeout=None) -> Answer:
        """A simple Query."""
        self.send(pgwire.query(sql))
        return self.until_ready(timeout)

    def ok(self, sql) -> Answer:
        return self.query(sql).ok()

    def value(self, sql):
        return self.ok(sql).value

    def ask(self, *messages, timeout=None) -> Answer:
        """Sends messages of the extended protocol and a Sync."""
        self.send(*messages, pgwire.sync())
        return self.until_ready(timeout)

    def run(self, sql, *parameters, **options) -> Answer:
        """The usual round of the extended protocol with the unnamed statement."""
        return self.ask(pgwire.extended(sql, parameters, **options))

    def cancel(self, key=None, peer=None):
        """A cancel request for this client (or for `key`), on a connection of its own; waits for its end."""
        with socket.create_connection(peer or self.peer, timeout=self.timeout) as other:
            other.sendall(pgwire.cancel_request(*(key or self.key)))
            try:
                while other.recv(100):
                    pass
            except ConnectionResetError:
                pass

    def close(self):
        """Without a word, as a process that ends."""
        self.socket.close()

    def terminate(self):
        try:
            self.send(pgwire.terminate())
        except OSError:
            pass
        self.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
