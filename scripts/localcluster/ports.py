"""Free loopback ports, below the range the kernel hands out to outgoing connections."""

import random
import socket

_range = range(20000, 32000)
_handed_out = set()


def use_part(part, parts):
    """This process hands out every `parts`-th port, from number `part` on: others take the rest."""
    global _range
    _range = range(20000 + part, 32000, parts)


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
    for port in random.SystemRandom().sample(_range, min(2000, len(_range))):
        if port not in _handed_out and is_free(port):
            _handed_out.add(port)
            return port
    raise RuntimeError("no free port between 20000 and 32000")
