"""A deliberately naive forwarder, as a client: the negative control of the suite.

It sends each statement to the shard of the first key-like value it finds, believes that every statement
is about one shard, and refuses nothing. The suite must find it wrong, in many ways. Never a mode of the
router.
"""

import re

VALUE = re.compile(rb"'((?:[^'\0]|'')*)'|(?<![\w.])(-?\d+)(?![\w.])")
EVERYWHERE = re.compile(rb"\s*(BEGIN|START|COMMIT|END|ROLLBACK|ABORT|SAVEPOINT|RELEASE|SET|RESET|DISCARD|DECLARE|FETCH|MOVE|CLOSE)\b", re.I)


class NaiveForwarder:
    def __init__(self, shop):
        self.world = shop.world
        self.shards = {side: shop.plain_client(side) for side in ("s0", "s1")}
        self.last = "s0"

    def shard_of(self, data):
        for text, number in VALUE.findall(data):
            if number and ("accounts", int(number)) in self.world.shard:
                return self.world.shard["accounts", int(number)]
            text = text.decode("utf-8", "replace")
            for keyspace in ("users", "docs"):
                if (keyspace, text) in self.world.shard:
                    return self.world.shard[keyspace, text]
        return "s0"

    def answer(self, data):
        if EVERYWHERE.match(data[5:]) and data[:1] == b"Q" or data[:1] in b"PC" and b"B\0\0\0" not in data:
            answers = [self.shards[side].answer(data) for side in ("s0", "s1")]
            return answers[self.last == "s1"]
        self.last = self.shard_of(data)
        return self.shards[self.last].answer(data)

    def close(self):
        for one in self.shards.values():
            one.close()
