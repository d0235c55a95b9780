"""Clients that write and read through the router while something else happens; all they do goes into a History.

Each client speaks in one way (see WAYS). A transfer takes from one account, gives to another of the same group and
posts both legs with a token of its own; a post is a single INSERT; a register has one writer. Outcomes are judged
by what docs/application.md says of errors, and the clients reconnect when they are cut off.
"""

import itertools
import threading
import time
from random import Random

from . import pgwire as w
from .history import OK, REFUSED, UNKNOWN, WRONG, Event, History
from .pgclient import Closed, LoginRefused
from .router import SLACK
from .wait import wait_until

BALANCE = 1_000_000
# Error classes after which nothing has been done: the statement failed. Others (a broken connection, a server that
# goes down in the middle) say nothing of it.
CERTAIN = ("0A", "21", "22", "23", "25", "26", "34", "40", "42", "53", "54", "55", "IL")
UNCERTAIN = ("40003", "IL032")
CERTAIN_CODES = ("57014", "57P03")


class Refusal(Exception):
    """An error answer; `certain` when it proves that the statement has done nothing."""

    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text
        self.certain = code not in UNCERTAIN and (code.startswith(CERTAIN) or code in CERTAIN_CODES)


class Unexpected(Exception):
    """An answer that is no error and cannot be right: a row that is gone, or one too many."""


def expect(condition, text):
    if not condition:
        raise Unexpected(text)


class Simple:
    """Statements as text, values written into them."""

    line = False

    def __init__(self, router):
        self.client = router.pg_client(timeout=30)

    def close(self):
        self.client.close()

    def take(self, answer):
        """(rows, number of rows changed) of the answer to one statement."""
        if answer.errors:
            raise Refusal(answer.errors[0].code, answer.errors[0].text)
        rows = [tuple(None if value is None else int(value) for value in row) for row in answer.rows]
        return rows, int((answer.tags or ["0"])[-1].split()[-1]) if answer.tags and answer.tags[-1][-1].isdigit() else 0

    def run(self, sql, *values):
        for number, value in reversed(list(enumerate(values, 1))):
            sql = sql.replace(f"${number}", str(value))
        return self.take(self.client.query(sql))

    def begin(self, isolation=None):
        self.take(self.client.query("BEGIN" + (f" ISOLATION LEVEL {isolation}" if isolation else "")))

    def commit(self):
        answer = self.client.query("COMMIT")
        self.take(answer)
        expect(answer.tag == "COMMIT", f"COMMIT answered {answer.tag}")

    def rollback(self):
        self.client.query("ROLLBACK")


class Extended(Simple):
    """Parse, Bind, Describe, Execute of the unnamed statement."""

    def run(self, sql, *values):
        return self.take(self.client.ask(w.parse(sql, types=(20,) * len(values)), w.bind(values), w.describe_portal(), w.execute()))


class Prepared(Simple):
    """Each text is prepared once, under a name."""

    def __init__(self, router):
        super().__init__(router)
        self.names = {}

    def run(self, sql, *values):
        name, before = self.names.get(sql), b""
        if name is None:
            name = f"s{len(self.names)}"
            before = w.parse(sql, name, types=(20,) * len(values))
        answer = self.client.ask(before, w.bind(values, statement=name), w.execute())
        if answer.of("1") or not before:
            self.names[sql] = name
        return self.take(answer)


class Pipeline(Extended):
    """A transfer is sent as a whole, BEGIN to COMMIT, before any answer is read."""

    def transaction(self, statements, isolation=None):
        """Runs all with one Sync at the end; returns the number of rows that each changed."""
        begin = "BEGIN" + (f" ISOLATION LEVEL {isolation}" if isolation else "")
        whole = [(begin, ()), *statements, ("COMMIT", ())]
        answer = self.client.ask(b"".join(w.parse(sql, types=(20,) * len(values)) + w.bind(values) + w.execute()
                                          for sql, values in whole))
        tags = answer.tags
        if answer.errors:
            if answer.status != "I":
                self.rollback()
            error = Refusal(answer.errors[0].code, answer.errors[0].text)
            # A transaction that still was there to be rolled back has committed nothing.
            error.certain = error.certain or answer.status == "E"
            raise error
        expect(len(tags) == len(whole) and tags[-1] == "COMMIT", f"the tags are {tags}")
        return [int(tag.split()[-1]) for tag in tags[1:-1]]


class Line:
    """The line protocol."""

    def __init__(self, router):
        self.client = router.client(timeout=30)

    def close(self):
        self.client.close()

    def ask(self, sql, *values):
        try:
            answer = self.client.q(sql, *values)
        except ConnectionError:
            raise Closed([]) from None
        if not answer.ok:
            refusal = Refusal(answer.sqlstate, f"{answer.code} {answer.msg}")
            refusal.certain = answer.code != "R32" and (answer.code != "R31" or refusal.certain or answer.sqlstate == "57P01")
            raise refusal
        return answer

    def run(self, sql, *values):
        places = sorted((sql.index(f"${number}"), number) for number in range(1, len(values) + 1))
        for number in range(len(values), 0, -1):
            sql = sql.replace(f"${number}", "?")
        answer = self.ask(sql, *(values[number - 1] for _, number in places))
        return [tuple(row) for row in answer.rows or []], answer.count

    def begin(self, isolation=None):
        assert isolation is None, "the line protocol has READ COMMITTED only"
        self.ask("BEGIN")

    def commit(self):
        expect(self.ask("COMMIT").tag == "COMMIT", "COMMIT answered something else")

    def rollback(self):
        self.client.q("ROLLBACK")


WAYS = {"simple": Simple, "extended": Extended, "prepared": Prepared, "pipeline": Pipeline, "line": Line}

POST = "INSERT INTO posting (account_id, token, amount) VALUES ($1, $2, $3)"
MOVE_MONEY = "UPDATE account SET balance = balance + $1 WHERE account_id = $2"
LOOK = "SELECT balance FROM account WHERE account_id = $1"
LOCK = LOOK + " FOR UPDATE"
SET = "UPDATE register SET value = $1 WHERE account_id = $2 AND number = $3"
GET = "SELECT value FROM register WHERE account_id = $1 AND number = $2"
NEW_REGISTER = "INSERT INTO register (account_id, number, value) VALUES ($1, $2, $3)"


class Client(threading.Thread):
    """One connection to the router, and what it does in a loop."""

    def __init__(self, load, number, group, way):
        super().__init__(daemon=True, name=f"client {number} ({way}, {group})")
        self.load, self.number, self.group, self.way = load, number, group, way
        self.keys = load.groups[group]
        self.random = Random(load.seed * 1000 + number)
        self.talk = None
        self.register, self.value = None, 0
        self.done, self.fault, self.refused = 0, None, None

    def run(self):
        try:
            while not self.load.stopping.is_set():
                self.step()
        except BaseException as fault:  # noqa: BLE001  (shown by Load.stop)
            self.fault = fault
        finally:
            if self.talk:
                self.talk.close()

    def step(self):
        if self.talk is None:
            try:
                self.talk = WAYS[self.way](self.load.router)
            except (OSError, LoginRefused) as fault:
                # The router is away or takes nobody: another try, not at once.
                self.refused = fault
                self.load.stopping.wait(0.02)
                return
        if self.register is None:
            self.new_register()
            return
        kinds = self.load.kinds
        kind = self.random.choices(list(kinds), list(kinds.values()))[0]
        getattr(self, kind)()
        if self.load.pause:
            self.load.stopping.wait(self.load.pause)

    # -- one event -------------------------------------------------------------------------------

    def record(self, event, body):
        """Runs `body`; the event gets its outcome. In a transaction, what fails before COMMIT has done nothing."""
        self.committing = True
        try:
            body(event)
            event.outcome = OK
            self.done += 1
        except Refusal as refusal:
            event.outcome = REFUSED if refusal.certain or not self.committing else UNKNOWN
            event.code, event.text = refusal.code, refusal.text
        except Unexpected as fault:
            event.outcome, event.text = WRONG, str(fault)
        except (Closed, OSError) as fault:
            event.outcome = UNKNOWN if self.committing else REFUSED
            event.code, event.text = "closed", repr(fault)
            self.reconnect()
        event.ended = time.monotonic()
        self.load.history.add(event)
        if event.kind in ("get", "total") and event.outcome == UNKNOWN:
            event.outcome = REFUSED
        return event

    def event(self, kind, **fields):
        return Event(self.number, kind, time.monotonic(), group=self.group, **fields)

    def reconnect(self):
        self.talk.close()
        self.talk = None

    def end_transaction(self):
        """After an error in a transaction; the connection may be gone, too."""
        try:
            self.talk.rollback()
        except (Closed, OSError, Refusal):
            self.reconnect()

    # -- what clients do -------------------------------------------------------------------------

    def new_register(self):
        place = (self.random.choice(self.keys), next(self.load.numbers))

        def body(_):
            _, count = self.talk.run(NEW_REGISTER, *place, 0)
            expect(count == 1, f"INSERT {count}")

        event = self.event("create", register=place)
        self.record(event, body)
        if event.outcome == OK:
            self.register, self.value = place, 0
            self.load.registers[self.group].append(place)

    def set(self):
        self.value += 1

        def body(_):
            _, count = self.talk.run(SET, self.value, *self.register)
            expect(count == 1, f"UPDATE {count}: register {self.register} is gone")

        event = self.record(self.event("set", register=self.register, value=self.value), body)
        if event.outcome == UNKNOWN:
            # It may still come; whoever wrote on would make it look like a step back.
            self.register = None

    def get(self):
        place = self.random.choice(self.load.registers[self.group])

        def body(event):
            rows, _ = self.talk.run(GET, *place)
            expect(len(rows) == 1, f"register {place} is there {len(rows)} times")
            event.value = rows[0][0]

        self.record(self.event("get", register=place), body)

    def post(self):
        key, token = self.random.choice(self.keys), next(self.load.tokens)

        def body(_):
            _, count = self.talk.run(POST, key, token, 0)
            expect(count == 1, f"INSERT {count}")

        self.record(self.event("post", token=token, legs=((key, 0),)), body)

    def transfer(self):
        source, target = self.random.sample(self.keys, 2)
        amount, token = self.random.randint(1, 9), next(self.load.tokens)
        legs = ((source, -amount), (target, amount))
        # In the order of their keys, so that two transfers do not wait for each other.
        updates = [(MOVE_MONEY, (value, key)) for key, value in sorted(legs)]
        posts = [(POST, (key, token, value)) for key, value in legs]
        first = self.random.choice([None, None, LOOK, LOCK]) if self.way != "line" else self.random.choice([None, LOOK])
        event = self.event("transfer", token=token, legs=legs)

        def body(_):
            if hasattr(self.talk, "transaction"):
                counts = self.talk.transaction(updates + posts, self.load.isolation)
                expect(counts == [1] * 4, f"rows changed: {counts}")
                return
            self.committing = False
            self.talk.begin(self.load.isolation)
            if first:
                rows, _ = self.talk.run(first, min(source, target))
                expect(len(rows) == 1, f"account {min(source, target)} is there {len(rows)} times")
            for sql, values in updates + posts:
                _, count = self.talk.run(sql, *values)
                expect(count == 1, f"{count} rows changed by {sql}")
            self.committing = True
            self.talk.commit()

        self.record(event, body)
        if event.outcome != OK and self.talk is not None and not hasattr(self.talk, "transaction"):
            self.end_transaction()

    def total(self):
        wanted = str(BALANCE * len(self.keys))

        def body(event):
            rows, _ = self.talk.run(f"SELECT balance FROM account WHERE account_id IN ({', '.join(map('${}'.format, range(1, len(self.keys) + 1)))})",
                                    *self.keys)
            expect(len(rows) == len(self.keys), f"{len(rows)} of {len(self.keys)} accounts are there")
            event.value = sum(row[0] for row in rows)

        self.record(self.event("total", text=wanted), body)


class Load:
    """`with Load(cluster, {"moved": keys, ...}, clients=16) as load:`; afterwards load.history is complete.

    The keys of a group belong to one bucket (or to buckets of one shard that stay together); the groups' accounts must
    exist with BALANCE each: see `fill`. `kinds` are weights of what clients do, `pause` is between two steps.
    """

    def __init__(self, cluster, groups, clients=4, *, ways=tuple(WAYS), kinds=None, isolation=None, router=None,
                 pause=0.0, seed=1):
        self.cluster, self.groups, self.isolation, self.pause, self.seed = cluster, groups, isolation, pause, seed
        self.router = router or cluster.router
        self.kinds = kinds or {"transfer": 4, "post": 2, "set": 2, "get": 2, "total": 1}
        self.history = History({key: BALANCE for keys in groups.values() for key in keys})
        self.tokens, self.numbers = itertools.count(1), itertools.count(1)
        self.registers = {group: [] for group in groups}
        self.stopping = threading.Event()
        names = list(groups)
        if isolation:
            ways = tuple(way for way in ways if way != "line")
        self.clients = [Client(self, number, names[number % len(names)], ways[number // len(names) % len(ways)])
                        for number in range(clients)]

    @staticmethod
    def fill(cluster, groups):
        """Empty tables but for the groups' accounts, each on the shard that owns its bucket."""
        for shard in cluster.shards:
            with cluster.instances[shard].connect() as connection, connection.transaction():
                connection.execute("DELETE FROM account; DELETE FROM posting; DELETE FROM register")
                connection.execute("INSERT INTO account SELECT k, 'owner', %s, 0 FROM unnest(%s::bigint[]) k WHERE interlock.owns('accounts', k)",
                                   (BALANCE, [key for keys in groups.values() for key in keys]))

    def start(self):
        for client in self.clients:
            client.start()
        return self.progress(1)

    def progress(self, steps=3, *groups, deadline=60):
        """Waits until every client (of the groups, if any are named) has had so many more things done."""
        clients = [client for client in self.clients if not groups or client.group in groups]
        before = [client.done for client in clients]

        def all_went_on():
            faults = [f"{client.name}: {client.fault!r}" for client in self.clients if client.fault]
            assert not faults, "\n".join(faults)
            return all(client.done >= done + steps for client, done in zip(clients, before))

        try:
            wait_until(all_went_on, deadline * SLACK, f"{steps} more steps of each client")
        except AssertionError as late:
            raise AssertionError(f"{late}\nlast: {self.history.events[-3:]}, {[client.refused for client in self.clients]}") from None
        return self

    def stop(self):
        self.stopping.set()
        for client in self.clients:
            if client.ident:
                client.join(60 * SLACK)
        faults = [f"{client.name}: {client.fault!r}" for client in self.clients if client.fault]
        faults += [f"{client.name} hangs" for client in self.clients if client.is_alive()]
        assert not faults, "\n".join(faults)
        return self.history

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, *_):
        if kind is None:
            self.stop()
        else:
            self.stopping.set()
            for client in self.clients:
                if client.ident:
                    client.join(10)
