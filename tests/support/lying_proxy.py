"""A proxy in front of a shard that changes what the shard says of a scatter's rows."""

import re
import struct

from . import pgwire as w
from .frame_proxy import FrameProxy

# The merge key, hidden in the last column: hexadecimal, 8 bytes of digest and more.
MERGE_KEY = re.compile(rb"[0-9a-f]{18,}")


def data_row(values):
    return w.frame(b"D", struct.pack("!H", len(values)) + b"".join(map(w.value, values)))


def row_description(columns):
    return w.frame(b"T", struct.pack("!H", len(columns)) + b"".join(
        w.text(c.name) + struct.pack("!IhIhih", c.table, c.attribute, c.type, c.size, c.modifier, c.format)
        for c in columns))


class LyingProxy(FrameProxy):
    """`rows`: what says something else of the rows with a merge key: (place, values) -> list of rows' values.
    `columns`: the same of RowDescription: tuple of columns -> tuple of columns. `told`: the rows as they came."""

    def __init__(self, target):
        super().__init__(target)
        self.rows = self.columns = self.raw = None
        self.told = []

    def tell_the_truth(self):
        self.rows = self.columns = self.raw = None
        self.told = []

    def rewritten(self, side, kind, message):
        if side == "backend" and kind == "D":
            values = list(w.take_values(w.Reader(message[5:])))
            if values and values[-1] is not None and MERGE_KEY.fullmatch(values[-1]):
                self.told.append(values)
                if self.rows:
                    return b"".join(map(data_row, self.rows(len(self.told) - 1, values)))
                if self.raw:
                    return self.raw(len(self.told) - 1, message)
        if side == "backend" and kind == "T" and self.columns:
            return row_description(self.columns(w.take_columns(w.Reader(message[5:]))))
        return message
