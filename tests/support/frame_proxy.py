"""A proxy between a router and a shard that knows PostgreSQL's messages, and cuts between any two of them."""

import socket
import struct
import threading


class Cut(Exception):
    """Raised by rewritten(): deliver this part of the message, and close the connection."""

    def __init__(self, part):
        super().__init__()
        self.part = part


class FrameProxy:
    """Forwards 127.0.0.1:`port` to `target` message by message (plain connections only).

    arm(side, count)   side "frontend" or "backend": counted from now, over all connections, `count` messages of
                       that side are still delivered; when the next one comes, both ends of its connection are
                       closed instead, and `cut` is set. `inside=True`: half of that message is still delivered.
    `seen` lists (side, type) of what was delivered since arm().
    """

    def __init__(self, target):
        self.target = target
        self.lock = threading.Lock()
        self.side, self.left, self.inside = None, 0, False
        self.seen = []
        self.cut = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def arm(self, side, count, inside=False):
        with self.lock:
            self.cut.clear()
            self.seen = []
            self.side, self.left, self.inside = side, count, inside

    def disarm(self):
        """Returns what was delivered since arm()."""
        with self.lock:
            self.side = None
            return self.seen

    def accept(self):
        while True:
            try:
                router, _ = self.listener.accept()
            except OSError:
                return
            try:
                shard = socket.create_connection(self.target)
            except OSError:
                router.close()
                continue
            for each in (router, shard):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = (router, shard)
            threading.Thread(target=self.forward, args=("frontend", *pair, pair), daemon=True).start()
            threading.Thread(target=self.forward, args=("backend", shard, router, pair), daemon=True).start()

    def forward(self, side, source, sink, pair):
        pending = bytearray()
        # What a connection begins with has no type byte.
        started = side == "backend"
        try:
            while data := source.recv(1 << 16):
                pending += data
                out = bytearray()
                while (size := self.size_of(pending, started)) is not None and len(pending) >= size:
                    message = pending[:size]
                    kind = chr(message[0]) if started else "startup"
                    started = True
                    if self.delivers(side, kind):
                        out += self.rewritten(side, kind, bytes(message))
                    else:
                        out += message[:size // 2] if self.inside else b""
                        if out:
                            sink.sendall(out)
                        self.cut.set()
                        self.close_pair(*pair)
                        return
                    del pending[:size]
                if out:
                    sink.sendall(out)
        except Cut as cut:
            sink.sendall(out + cut.part)
            self.cut.set()
        except OSError:
            pass
        self.close_pair(*pair)

    @staticmethod
    def size_of(pending, typed):
        if len(pending) < 5:
            return None
        (length,) = struct.unpack_from("!i", pending, 1 if typed else 0)
        return length + typed

    def delivers(self, side, kind):
        with self.lock:
            if side == self.side:
                if self.left == 0:
                    self.side = None
                    return False
                self.left -= 1
            self.seen.append((side, kind))
            return True

    def rewritten(self, side, kind, message):
        """What is delivered in place of the message; a proxy that lies says otherwise."""
        return message

    @staticmethod
    def close_pair(*sockets):
        for each in sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.listener.close()
