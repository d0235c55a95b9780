"""Sends the same SELECTs to the router and to the unsharded database, and compares the answers."""

from collections import Counter

from . import client, gather
from .client import Gone
from .runner import Fault, Session, describe, differs

SETTINGS = ["TimeZone = 'Asia/Tokyo'", "TimeZone TO 'UTC'", "DateStyle = 'German'", "DateStyle = 'ISO, MDY'", "IntervalStyle = 'iso_8601'",
            "IntervalStyle = 'postgres_verbose'", "IntervalStyle = 'postgres'", "extra_float_digits = 0", "extra_float_digits = 1",
            "bytea_output = 'escape'", "bytea_output = 'hex'", "enable_hashagg = off", "enable_seqscan = off", "enable_seqscan = on"]
MOST_FAULTS = 60


def own_refusal(answer):
    """The refusal of this answer that the router itself made, or None."""
    return next((r.error for r in answer.results if r.error and r.error.refusal), None)


class GatherRunner:
    """`connect` opens a client of what is tested; sessions allow scatters by hint, or by a setting."""

    def __init__(self, shop, connect, rng, sessions=2):
        self.shop, self.rng = shop, rng
        self.faults, self.kinds, self.codes = [], Counter(), Counter()
        self.asked, self.answered, self.errors = Counter(), Counter(), Counter()
        self.refused = []           # statements of level 1, with the refusal
        self.with_rows = 0
        self.messages = Counter()
        self.sessions = [Session(connect, shop.plain_client) for _ in range(sessions)]
        for session in self.sessions[1:]:
            self.both(session, client.query("SET interlock.scatter = on"))

    @staticmethod
    def both(session, data):
        return session.router.answer(data), session.plain.answer(data)

    def run(self, statements, seed=None, refused=True):
        """`refused`: ask for what cannot be answered too."""
        for number in range(statements):
            if len(self.faults) >= MOST_FAULTS:
                break
            session = self.rng.choice(self.sessions)
            if self.rng.random() < 0.04:
                self.both(session, client.query(f"SET {self.rng.choice(SETTINGS)}"))
            statement = gather.Maker(self.rng, hinted=session is self.sessions[0]).statement(refused)
            data, show = statement.exchange(self.rng)
            way = self.rng.random() if statement.kind != "refused" else 1
            if way < 0.08:
                self.in_transaction(session, statement, data, show, seed, number)
            elif way < 0.14:
                self.prepared(session, statement, seed, number)
            elif way < 0.17 and statement.ordered:
                self.in_pieces(session, statement, seed, number)
            elif way < 0.2:
                self.together(session, statement, seed, number)
            else:
                self.compare(session, statement, data, show, seed, number)
        return self.faults

    def prepared(self, session, statement, seed, number):
        """Parsed once, described, and executed with one set of values after the other."""
        prepared, name = statement.prepare(self.rng), f"s{number}"
        for answer in self.both(session, prepared.parse(name) + client.describe(b"S", name) + client.SYNC):
            if answer.error:
                return self.compare(session, statement, prepared.parse() + client.SYNC, f"Parse {prepared}", seed, number)
        for _ in range(3):
            data = prepared.bind("", name) + client.describe(b"P", "") + client.execute() + client.SYNC
            self.compare(session, statement, data, f"(prepared) {prepared}", seed, number)
            prepared.other_values(self.rng)
        self.both(session, client.close(b"S", name) + client.SYNC)

    def in_pieces(self, session, statement, seed, number):
        """By a portal that is asked for some rows at a time. Nothing is claimed."""
        statement.level, prepared = 3, statement.prepare(self.rng)
        data = (prepared.parse() + prepared.bind("p") + client.execute("p", 2) + client.execute("p", 3) + client.execute("p", 0) +
                client.close(b"P", "p") + client.SYNC)
        self.compare(session, statement, data, f"(2, 3, all rows) {prepared}", seed, number)

    def together(self, session, statement, seed, number):
        """Two in one pipeline, or in one Query. Nothing is claimed."""
        statement.level, one, two = 3, statement.prepare(self.rng), statement.prepare(self.rng)
        if self.rng.random() < 0.5:
            data = one.parse() + one.bind() + client.execute() + two.parse() + two.bind() + client.execute() + client.SYNC
            self.compare(session, statement, data, f"{one}\n   then {two}", seed, number)
        else:
            text = f"{statement.literal_text().rstrip('; ')}; {statement.literal_text()}"
            self.compare(session, statement, client.query(text), text, seed, number)

    def in_transaction(self, session, statement, data, show, seed, number):
        """In a block that is not pinned, under a setting of the block's own."""
        begin = self.rng.choice(("BEGIN", "BEGIN READ ONLY", "START TRANSACTION"))
        local = f"SET LOCAL {self.rng.choice(SETTINGS)}"
        for text in (begin, local):
            self.both(session, client.query(text))
        try:
            if self.compare(session, statement, data, f"{begin}; {local}; {show}", seed, number):
                self.compare(session, statement, data, f"{begin}; {local}; (again) {show}", seed, number)
        finally:
            self.both(session, client.query(self.rng.choice(("COMMIT", "ROLLBACK"))))

    def compare(self, session, statement, data, show, seed, number):
        """True if the router answered it, without an error."""
        name = {1: statement.kind, 2: "refused", 3: "other"}[statement.level]
        self.asked[name] += 1
        try:
            got = session.router.answer(data)
        except Gone as gone:
            self.fault(f"connection lost: {gone}", "an answer", "none", show, seed, number)
            session.close()
            session.open()
            return False
        refusal = own_refusal(got)
        if refusal:
            self.codes[refusal.refusal] += 1
            if statement.level == 1:
                self.refused.append((str(refusal), show))
            if any(r.rows for r in got.results):
                self.fault("rows before a refusal", "none", describe(got.results[-1]), show, seed, number)
            return False
        expected = session.plain.answer(data)
        self.answered[name] += 1
        if len(got.results) != len(expected.results):
            self.fault("number of results", *([describe(r) for r in a.results] for a in (expected, got)), show, seed, number)
            return False
        for one, two in zip(got.results, expected.results):
            self.with_rows += bool(two.rows)
            difference = differs(one, two, statement)
            if difference:
                self.fault(difference, two.fields if difference == "columns" else describe(two),
                           one.fields if difference == "columns" else describe(one), show, seed, number)
                return False
            if two.error:
                self.errors[two.error.sqlstate] += 1
                if one.error.message != two.error.message:
                    self.messages[f"{one.error.message} <> {two.error.message}"] += 1
        if got.status != expected.status:
            self.fault("transaction state", expected.status, got.status, show, seed, number)
        elif [n.sqlstate for n in got.notices] != [n.sqlstate for n in expected.notices]:
            self.fault("notices", [str(n) for n in expected.notices], [str(n) for n in got.notices], show, seed, number)
        return got.results[-1].error is None

    def case(self, expectation, text, extended=False, binary=False):
        """A hand-written statement; None, or what is wrong."""
        session = self.sessions[-1]
        data = client.query(text)
        if extended:
            data = (client.parse("", text) + client.bind("", "", [], [], [1] if binary else []) + client.describe(b"P", "") +
                    client.execute() + client.SYNC)
        codes, before = Counter(self.codes), len(self.faults)
        self.compare(session, gather.Statement(text, [], 3, ordered="ordered" in expectation), data, text, "hand-written", 0)
        if len(self.faults) > before:
            return str(self.faults.pop())
        code = next(iter(self.codes - codes), None)
        allowed = set(expectation.split("/"))
        if "any" in allowed or code in allowed or code and "R" in allowed:
            return None
        if code:
            return f"{expectation}, but it is refused ({code}): {text}"
        return None if allowed & {"ok", "ordered"} else f"{expectation}, but it is answered: {text}"

    def fault(self, what, expected, got, show, seed, number):
        fault = Fault(what, expected, got, show, [], seed, number)
        self.faults.append(fault)
        self.kinds[fault.kind] += 1

    def share(self, *kinds):
        asked = sum(self.asked[kind] for kind in kinds)
        return sum(self.answered[kind] for kind in kinds) / asked if asked else 1.0

    def close(self):
        for session in self.sessions:
            session.close()

    def told(self, most=12):
        return "\n".join(map(str, self.faults[:most]))

    def summary(self, most=15):
        lines = [f"asked {dict(self.asked)}, answered {dict(self.answered)}, {self.with_rows} with rows, errors in both "
                 f"{dict(self.errors)}, refused {dict(self.codes)}"]
        seen = set()
        for message, show in self.refused:
            if message[:70] not in seen:
                seen.add(message[:70])
                lines.append(f"refused: {message}\n      {show}")
        lines += [f"same SQLSTATE, other message: {text}" for text, _ in self.messages.most_common(5)]
        return "\n".join(lines[:most])
