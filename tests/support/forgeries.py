"""What is not a cursor of a keyset and scope: made from one that is."""

import base64
from random import Random


def forgeries(cursor, others):
    """(name, text): what is not a cursor of this keyset and scope."""
    random = Random(7)
    raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    yield from ((f"other {number}", other) for number, other in enumerate(others))
    yield from ((f"cut to {length}", cursor[:length]) for length in range(0, len(cursor), 7))
    yield from ((f"random {length}", base64.urlsafe_b64encode(random.randbytes(length)).decode().rstrip("="))
                for length in (1, 16, len(raw) - 1, len(raw), len(raw) + 1, 500))
    for bit in range(0, 8 * len(raw), 3):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        yield f"bit {bit}", base64.urlsafe_b64encode(flipped).decode().rstrip("=")
    yield from (("padded", cursor + "="), ("longer", cursor + "AAAA"), ("spaced", " " + cursor),
                ("other alphabet", cursor.replace("_", "/").replace("-", "+") + "+"), ("not ascii", cursor + "é"))
