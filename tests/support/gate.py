"""A TCP proxy that can be shut, or keep one request until it is let through: a network between a router and a server."""

import socket
import threading


class Gate:
    """Forwards 127.0.0.1:`port` to 127.0.0.1:`target`.

    shut() closes all connections and refuses new ones until open(); hold(word) keeps what comes behind the first
    request that contains `word`, it included, on that one connection; `held` is set then, and release() lets it go on.
    """

    def __init__(self, target):
        self.target = target
        self.lock = threading.Lock()
        self.word = None
        self.held, self.released = threading.Event(), threading.Event()
        self.pairs = []
        self.is_shut = False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def hold(self, word):
        self.held.clear()
        self.released.clear()
        self.word = word.encode()

    def release(self):
        self.released.set()

    def shut(self):
        with self.lock:
            self.is_shut = True
            for pair in self.pairs:
                self.close_pair(*pair)
            self.pairs.clear()

    def open(self):
        with self.lock:
            self.is_shut = False

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            with self.lock:
                try:
                    server = None if self.is_shut else socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    server = None
                if server is None:
                    client.close()
                    continue
                self.pairs.append((client, server))
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self.forward, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self.forward, args=(server, client, False), daemon=True).start()

    def forward(self, source, target, requests):
        try:
            while data := source.recv(1 << 16):
                if requests and self.word and self.word in data:
                    self.word = None
                    self.held.set()
                    self.released.wait()
                target.sendall(data)
        except OSError:
            pass
        self.close_pair(source, target)

    @staticmethod
    def close_pair(*sockets):
        for each in sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.listener.close()
        self.shut()
        self.released.set()
