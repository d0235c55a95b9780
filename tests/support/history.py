"""What clients did and saw, and what must be true of it: the judge of the tests that move buckets.

A History is a list of Events, all timed by one clock. `faults()` compares it with the rows that are there in the
end. It looks at each write by itself, not at sums only:

* an acknowledged write is present exactly once, a refused one absent; of an unknown outcome (the connection broke
  before the answer) it may be either, but whole;
* each account's balance is what it began with and the amounts of the postings present;
* a register, which only one client writes and always to a higher value, is linearizable: a read sees no less than
  what was acknowledged before it began or any earlier read saw, and nothing that was refused or not yet asked for;
* the balances of a group, read in one statement, always add up to the same total.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field

OK, REFUSED, UNKNOWN, WRONG = "ok", "refused", "unknown", "wrong"

ACCOUNT = """
CREATE TABLE account (account_id bigint PRIMARY KEY, owner text, balance bigint, version int);
GRANT SELECT, INSERT, UPDATE, DELETE ON account TO app;
"""
# No unique constraint over the token: a write that is done twice shall be seen, not refused.
TABLES = ACCOUNT + """
CREATE TABLE posting (account_id bigint NOT NULL, row_id uuid NOT NULL DEFAULT gen_random_uuid(),
                      token bigint NOT NULL, amount bigint NOT NULL, PRIMARY KEY (account_id, row_id));
CREATE TABLE register (account_id bigint NOT NULL, number int NOT NULL, value bigint NOT NULL,
                       PRIMARY KEY (account_id, number));
GRANT SELECT, INSERT, UPDATE, DELETE ON posting, register TO app;
"""
# Table -> version column, with which the line protocol may compare as well.
DECLARED = {"account": "version", "posting": None, "register": "number"}


@dataclass
class Event:
    """One thing that a client asked for. `began` is before it was sent, `ended` after the answer."""

    client: object
    kind: str  # post, transfer, set, get, total
    began: float
    ended: float = 0.0
    outcome: str = UNKNOWN
    token: int | None = None
    legs: tuple = ()  # of post and transfer: ((account, amount), ...)
    register: tuple | None = None  # of set and get: (account, number)
    value: int | None = None  # of set, get, total
    group: str = ""
    code: str | None = None  # SQLSTATE of an error
    text: str = ""

    @property
    def writes(self):
        return self.kind in ("post", "transfer", "set")

    @property
    def seconds(self):
        return self.ended - self.began


@dataclass
class Rows:
    """The rows at the end: what the owners of the buckets have."""

    balances: list = field(default_factory=list)  # (account, balance)
    postings: list = field(default_factory=list)  # (account, token, amount)
    registers: list = field(default_factory=list)  # (account, number, value)

    @classmethod
    def read(cls, cluster, keyspace="accounts"):
        """Straight from every shard, of the buckets that it owns: what two owners have comes twice."""
        rows = cls()
        for shard in cluster.shards:
            def owned(columns, table):
                return cluster.instances[shard].sql(f"SELECT {columns} FROM {table} WHERE interlock.owns(%s, account_id)", keyspace)
            rows.balances += owned("account_id, balance", "account")
            rows.postings += owned("account_id, token, amount", "posting")
            rows.registers += owned("account_id, number, value", "register")
        return rows


class History:
    """Accounts begin with `balances` (account -> balance), registers with 0."""

    def __init__(self, balances):
        self.balances = dict(balances)
        self.events = []

    def add(self, event):
        self.events.append(event)  # of a list: whole, whichever thread does it
        return event

    def of(self, *kinds, outcome=None, group=None):
        return [e for e in list(self.events) if e.kind in kinds and outcome in (None, e.outcome) and group in (None, e.group)]

    def writes(self, group=None, outcome=OK):
        return self.of("post", "transfer", "set", outcome=outcome, group=group)

    def failures(self, allowed=()):
        """What clients were told that is not OK, but for errors with an SQLSTATE in `allowed`."""
        return [e for e in list(self.events) if e.outcome != OK and e.code not in allowed]

    def no_failures(self, allowed=()):
        failed = self.failures(allowed)
        assert not failed, (f"{dict(Counter((e.kind, e.group, e.code) for e in failed))}\n"
                            + "\n".join(f"client {e.client}: {e.kind}, {e.seconds:.3f} s: {e.code} {e.text}" for e in failed[:10]))

    def counts(self):
        return Counter((e.kind, e.outcome) for e in list(self.events))

    # -- judging it ------------------------------------------------------------------------------

    def faults(self, rows):
        """Everything that must not be, as text: an empty list when all is well."""
        wrong = [f"{e.kind} of client {e.client}: {e.text}" for e in list(self.events) if e.outcome == WRONG]
        return wrong + self.posting_faults(rows) + self.balance_faults(rows) + self.register_faults(rows) + self.total_faults()

    def check(self, rows):
        faults = self.faults(rows)
        assert not faults, f"{len(faults)} faults in {dict(self.counts())}:\n" + "\n".join(faults[:20])
        return self

    def posting_faults(self, rows):
        present = defaultdict(Counter)
        for account, token, amount in rows.postings:
            present[token][account, amount] += 1
        faults = []
        for event in self.of("post", "transfer"):
            wanted, found = Counter(event.legs), present.pop(event.token, Counter())
            fits = {OK: found == wanted, REFUSED: not found, UNKNOWN: not found or found == wanted}
            if not fits.get(event.outcome, True):
                faults.append(f"{event.kind} {event.token} of client {event.client} ({event.outcome}): "
                              f"{shown(found)} is there instead of {shown(wanted)}")
        return faults + [f"token {token}: {shown(found)} was written by nobody" for token, found in present.items()]

    def balance_faults(self, rows):
        expected = dict(self.balances)
        for account, _, amount in rows.postings:
            expected[account] = expected.get(account, 0) + amount
        found = Counter(account for account, _ in rows.balances)
        faults = [f"account {account} is there {found[account]} times" for account in expected if found[account] != 1]
        faults += [f"account {account} has {balance} instead of {expected.get(account)}"
                   for account, balance in rows.balances if balance != expected.get(account)]
        total, whole = sum(balance for _, balance in rows.balances), sum(self.balances.values())
        return faults + ([f"the total is {total} instead of {whole}"] if total != whole else [])

    def register_faults(self, rows):
        final = defaultdict(list)
        for account, number, value in rows.registers:
            final[account, number].append(value)
        written, read = defaultdict(list), defaultdict(list)
        for event in self.of("set"):
            written[event.register].append(event)
        for event in self.of("get", outcome=OK):
            read[event.register].append(event)
        faults = []
        for register in written.keys() | read.keys() | final.keys():
            faults += one_register(register, written[register], read[register], final[register])
        return faults

    def total_faults(self):
        """Reads of all balances of a group; `value` is their sum, `text` what it has to be."""
        return [f"client {e.client} saw the total {e.value} instead of {e.text}"
                for e in self.of("total", outcome=OK) if str(e.value) != e.text]

    # -- how long it took ------------------------------------------------------------------------

    def longest(self, group=None, since=0.0):
        """Seconds that the slowest acknowledged write took."""
        return max((e.seconds for e in self.writes(group) if e.ended >= since), default=0.0)

    def longest_gap(self, group=None, since=0.0, until=float("inf")):
        """Seconds between two acknowledgements of writes, at most: how long nobody got on."""
        times = sorted(e.ended for e in self.writes(group) if since <= e.ended <= until)
        return max((b - a for a, b in zip(times, times[1:])), default=0.0)

    def rate(self, group, since, until):
        """Acknowledged writes a second within a time."""
        return sum(since <= e.ended < until for e in self.writes(group)) / (until - since)


def shown(legs):
    return dict(legs) or "nothing"


def one_register(register, written, read, final):
    """The faults of one register: `written` by one client with values that only rise, `read` by any."""
    faults = []
    written.sort(key=lambda e: e.began)
    for before, after in zip(written, written[1:]):
        if after.value <= before.value or after.began < before.ended or before.outcome == UNKNOWN:
            raise ValueError(f"register {register}: the load does not keep to the rules: {before}, {after}")
    acknowledged = [e for e in written if e.outcome == OK]
    last = acknowledged[-1].value if acknowledged else 0
    possible = {last} | {e.value for e in written if e.outcome == UNKNOWN}
    if len(final) != 1 or final[0] not in possible:
        faults.append(f"register {register} is {final} in the end, but {last} was acknowledged")
    # What a read must see: for each moment the highest value known by then, by acknowledgement or by another read.
    known = sorted([(e.ended, e.value) for e in acknowledged] + [(e.ended, e.value) for e in read])
    times, highest = [], []
    for ended, value in known:
        times.append(ended)
        highest.append(max(value, highest[-1]) if highest else value)
    asked = {0: 0.0} | {e.value: e.began for e in written if e.outcome != REFUSED}
    for event in read:
        earlier = bisect_left(times, event.began)
        floor = highest[earlier - 1] if earlier else 0
        if event.value not in asked or asked[event.value] > event.ended:
            faults.append(f"client {event.client} read {event.value} of register {register}, which nobody can have written by then")
        elif event.value < floor:
            faults.append(f"client {event.client} read {event.value} of register {register} after it was known to be {floor}")
    return faults
