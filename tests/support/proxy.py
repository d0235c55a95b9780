"""A TCP proxy that cuts a connection at a chosen moment, between a router and a shard."""

import socket
import threading


class CuttingProxy:
    """Forwards 127.0.0.1:`port` to `target` until `arm`ed; then watches for a request.

    arm(word, before=True)   the first request that contains `word` (any case) is not delivered
    arm(word, before=False)  it is delivered, the server's whole answer is awaited and thrown away
    Either way both sides are closed then, and `cut` is set. Works on plain (non-TLS) connections.
    """

    def __init__(self, target):
        self.target = target
        self.word = None
        self.before = True
        self.cut = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def arm(self, word, before):
        self.cut.clear()
        self.before = before
        self.word = word.lower().encode()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self.target)
            except OSError:
                client.close()
                continue
            swallow = threading.Event()
            answered = threading.Event()
            threading.Thread(target=self.requests, args=(client, server, swallow, answered), daemon=True).start()
            threading.Thread(target=self.answers, args=(client, server, swallow, answered), daemon=True).start()

    def requests(self, client, server, swallow, answered):
        try:
            while data := client.recv(1 << 16):
                word = self.word
                if word and word in data.lower():
                    self.word = None
                    if not self.before:
                        swallow.set()
                        server.sendall(data)
                        assert answered.wait(20), "the server did not answer"
                    self.cut.set()
                    self.close_pair(client, server)
                    return
                server.sendall(data)
        except OSError:
            pass
        self.close_pair(client, server)

    def answers(self, client, server, swallow, answered):
        kept = b""
        try:
            while data := server.recv(1 << 16):
                if swallow.is_set():
                    kept += data
                    # ReadyForQuery ends the answer: 'Z', length 5, transaction state.
                    if kept[-6:-1] == b"Z\0\0\0\x05":
                        answered.set()
                    continue
                client.sendall(data)
        except OSError:
            pass
        self.close_pair(client, server)

    @staticmethod
    def close_pair(*sockets):
        for each in sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.listener.close()
