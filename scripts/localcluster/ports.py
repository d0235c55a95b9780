"""Free loopback ports, below the range the kernel hands out to outgoing connections."""

import random
import socket

_handed_out = set()


def is_free(port, host="127.0.0.1"):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port():
    """A port nobody listens on, not handed out before by this process."""
    for port in random.SystemRandom().sample(range(20000, 32000), 2000):
        if port not in _handed_out and is_free(port):
            _handed_out.add(port)
            return port
    raise RuntimeError("no free port between 20000 and 32000")
