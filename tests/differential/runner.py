"""Runs units on the router and on the unsharded database, and compares."""

import random
import re
from collections import Counter

from . import client, units
from .client import Gone
from .shrink import shrink

MOST_FAULTS = 200    # then a run stops
MOST_KINDS = 25
MOST_OF_A_KIND = 2   # are told of


class Fault:
    """Something the router did that it must not."""

    def __init__(self, what, expected, got, show, context, seed, number):
        self.what, self.expected, self.got, self.show = what, expected, got, show
        self.context, self.seed, self.number = context, seed, number
        self.shrunk = None
        # Without what differs from one statement to the next.
        self.kind = what, *(re.sub(r"[^A-Za-z ]+|\b(rows|SELECT) \d+.*", "#", str(text))[:60] for text in (expected, got))

    def __str__(self):
        lines = [f"** {self.what}  (seed {self.seed}, unit {self.number})", f"   {self.show}",
                 f"   unsharded: {self.expected}", f"   router:    {self.got}"]
        if self.shrunk:
            lines.append(f"   shrunk to: {self.shrunk}")
        if self.context:
            lines += ["   before it in this unit:", *(f"     {line}" for line in self.context[-8:])]
        return "\n".join(lines)


class Session:
    """A client of the router and its double on the unsharded database."""

    def __init__(self, connect_router, connect_plain):
        self.connect_router, self.connect_plain = connect_router, connect_plain
        self.open()

    def open(self):
        self.router, self.plain = self.connect_router(), self.connect_plain()
        self.status = "I"
        self.refusal = None     # code of the last exchange's
        self.prepared = {}

    def close(self):
        self.router.close()
        self.plain.close()


def describe(result):
    if result.error:
        return f"error {result.error}"
    rows = f", {len(result.rows)} rows {result.rows[:3]}" if result.rows else ""
    return f"{result.tag}{rows}{'' if result.copied is None else f', {len(result.copied)} lines copied'}"


def lines(copied):
    """The lines of a COPY; the header of the binary format, which the first one has before it, taken off."""
    if copied and copied[0].startswith(b"PGCOPY\n"):
        return [copied[0][19:], *copied[1:]]
    return copied


def same_columns(one, two):
    if one == two or one is None or two is None:
        return one == two
    # A type modifier may come to be known, or not, by what a plan folds: custom and generic plans differ in it.
    return len(one) == len(two) and all(a[:2] + a[3:] == b[:2] + b[3:] and (a[2] == b[2] or -1 in (a[2], b[2]))
                                        for a, b in zip(one, two))


def differs(got, expected, template=None):
    """What is different between two results; None if nothing that counts is."""
    if (got.error is None) != (expected.error is None):
        return "one fails"
    if got.error:
        return None if got.error.sqlstate == expected.error.sqlstate else "SQLSTATE"
    if got.tag != expected.tag:
        return "command tag"
    if not same_columns(got.fields, expected.fields):
        return "columns"
    if template is not None and template.shape_only:
        return None
    for one, two in ((got.rows, expected.rows), (lines(got.copied), lines(expected.copied))):
        if one != two:
            if one is None or two is None or sorted(one) != sorted(two):
                return "rows"
            if template is not None and template.ordered:
                return "order of rows"
    return None


class Statistics:
    def __init__(self):
        self.statements = 0         # sent to the router
        self.accepted = 0           # carried out, or refused by a shard as by the unsharded database
        self.failed = 0             # of those, with an error in both
        self.codes = Counter()
        self.by_level = {1: [0, 0], 2: [0, 0], 3: [0, 0]}   # level -> [statements, accepted]
        self.refused = {1: [], 2: []}                       # (code, statement, message)
        self.constructs = Counter()                         # of level 2, refused
        self.messages = Counter()                           # same SQLSTATE, another message
        self.writes = 0
        self.checks = 0
        self.sqlstates = Counter()

    def share(self, level):
        asked, accepted = self.by_level[level]
        return accepted / asked if asked else 1.0

    def __str__(self):
        levels = ", ".join(f"level {level}: {accepted} of {asked} ({self.share(level):.1%})"
                           for level, (asked, accepted) in self.by_level.items())
        return (f"{self.statements} statements, {self.accepted} accepted ({self.failed} with an error in both: "
                f"{dict(self.sqlstates.most_common(12))}), {self.writes} writes, {self.checks} comparisons of all tables; "
                f"accepted {levels}; refused {dict(self.codes.most_common())}")


class Runner:
    """`shop` (see shop.py); `connect_router` opens a client of what is tested."""

    def __init__(self, shop, connect_router, sharded=True, connect_plain=None, sessions=3, report=print):
        self.shop, self.sharded, self.report = shop, sharded, report
        self.connect_router = connect_router
        self.connect_plain = connect_plain or (lambda: shop.plain_client())
        self.places = ("s0", "s1", "plain") if sharded else ("control", "plain")
        self.faults = []
        self.kinds = Counter()
        self.statistics = Statistics()
        self.sessions = [Session(connect_router, self.connect_plain) for _ in range(sessions)]
        self.log = []               # units since the last comparison of the tables
        self.since_check = 0
        self.shrinking = False
        self.tried = 0
        shop.reload(*self.places)

    # -- one exchange ------------------------------------------------------------------------------

    def fault(self, what, expected, got, step, context):
        fault = Fault(what, expected, got, step.show, list(context), self.seed, self.number)
        self.faults.append(fault)
        self.kinds[fault.kind] += 1
        if step.sql and self.kinds[fault.kind] == 1 and not context:
            fault.shrunk = self.shrink(step.sql)
        return fault

    def step(self, session, step, context):
        """Runs it on both; returns whether the router carried it out without an error."""
        try:
            got = session.router.answer(step.data)
        except Gone as gone:
            self.fault(f"connection lost: {gone}", "an answer", "none", step, context)
            self.replace(session)
            return False
        self.count(step, got, session)
        refusal = next((r.error for r in got.results if r.error and r.error.refusal), None)
        session.refusal = refusal and refusal.refusal
        if refusal:
            if session.status != "I":  # the unsharded transaction has to fail here too
                if step.fails:
                    session.plain.answer(step.fails)
                session.status = got.status
                if got.status != "E":
                    self.fault("a refusal left the transaction in another state", "E", got.status, step, context)
            elif got.status != "I":
                self.fault("a refusal outside a transaction opened one", "I", got.status, step, context)
            return False
        expected = session.plain.answer(step.data)
        self.compare(step, got, expected, context)
        session.status = expected.status
        return not any(r.error for r in got.results)

    def compare(self, step, got, expected, context):
        if len(got.results) != len(expected.results):
            self.fault("number of results", [describe(r) for r in expected.results], [describe(r) for r in got.results], step, context)
            return
        for index, (one, two) in enumerate(zip(got.results, expected.results)):
            template = step.templates[min(index, len(step.templates) - 1)] if step.templates else None
            difference = differs(one, two, template)
            if difference == "one fails" and not self.sharded and (one.error or two.error).sqlstate == "22003":
                return  # a narrowing cast fails on the rows a plan happens to give it
            if difference:
                self.fault(difference, describe(two), describe(one), step, context)
                if difference == "columns":
                    self.faults[-1].expected, self.faults[-1].got = str(two.fields), str(one.fields)
                return
            if two.error:
                self.statistics.failed += 1
                self.statistics.sqlstates[two.error.sqlstate] += 1
                if one.error.message != two.error.message:
                    self.statistics.messages[f"{one.error.message} <> {two.error.message}"] += 1
        if got.status != expected.status:
            self.fault("transaction state", expected.status, got.status, step, context)
        elif [n.sqlstate for n in got.notices] != [n.sqlstate for n in expected.notices]:
            self.fault("notices", [str(n) for n in expected.notices], [str(n) for n in got.notices], step, context)

    def count(self, step, got, session):
        s = self.statistics
        s.statements += step.statements
        self.since_check += step.statements
        refusal = next((r.error for r in got.results if r.error and r.error.refusal), None)
        if not refusal:
            s.accepted += step.statements
            s.writes += step.writes
        else:
            s.codes[refusal.refusal] += 1
        if session.status == "E" or not step.statements or not step.templates:
            return
        s.by_level[step.level][0] += 1
        if not refusal:
            s.by_level[step.level][1] += 1
        elif step.level in s.refused:
            constructs = sorted({c for t in step.templates for c in t.constructs})
            s.refused[step.level].append((refusal.refusal, step.show, str(refusal), constructs))
            if step.level == 2:
                s.constructs.update(constructs or ["none"])

    def replace(self, session):
        for one in (session.router, session.plain):
            one.close()
        try:
            session.open()
        except (Gone, OSError) as error:
            raise AssertionError(f"the router takes no connections any more: {error}\n" + "\n".join(map(str, self.faults))) from None

    # -- units -------------------------------------------------------------------------------------

    def unit(self, session, generator):
        context = []
        done = None
        before = len(self.faults)
        try:
            step = next(generator)
            while True:
                done = self.step(session, step, context)
                context.append(step.show)
                # R12 rolls the whole transaction back, its savepoints too: nothing to compare any more.
                if len(self.faults) > before or session.refusal == "R12":
                    break
                step = generator.send(done)
        except StopIteration:
            pass
        self.log.append(context)
        if len(self.faults) > before:  # both start afresh
            self.recover()
        elif session.status != "I":
            rollback = client.query("ROLLBACK")
            session.router.answer(rollback)
            session.plain.answer(rollback)
            session.status = "I"

    def recover(self):
        for session in self.sessions:
            self.replace(session)
        self.shop.reload(*self.places)
        self.log.clear()

    def run(self, seed, statements):
        """Until so many statements were sent. Stops early when there are too many faults."""
        self.seed = seed
        rng = random.Random(seed)
        made = units.Units(rng, self.shop.world)
        end = self.statistics.statements + statements
        self.number = 0
        while self.statistics.statements < end and len(self.faults) < MOST_FAULTS and len(self.kinds) < MOST_KINDS:
            self.number += 1
            session = rng.choice(self.sessions)
            self.unit(session, made.unit(session))
            if self.since_check >= 300:
                self.check()
        self.check()
        return self.faults

    # -- the tables --------------------------------------------------------------------------------

    def check(self, replay=True):
        """Each key's rows are on its shard, all of them, and nothing else is anywhere."""
        self.since_check = 0
        self.statistics.checks += 1
        plain = self.shop.contents("plain")
        wrong = []
        if not self.sharded:
            control = self.shop.contents("control")
            wrong = [f"{name}: {sorted(set(plain[name].items()) ^ set(control[name].items()))[:4]}" for name in plain
                     if plain[name] != control[name]]
        else:
            shards = {side: self.shop.contents(side) for side in ("s0", "s1")}
            for name in plain:
                expected, found = plain[name], {}
                for side in shards:
                    for key, rows in shards[side][name].items():
                        if key in found:
                            wrong.append(f"{name}: key {key!r} is on both shards")
                        found[key] = rows
                for key in {*expected, *found}:
                    if expected.get(key) != found.get(key):
                        wrong.append(f"{name}: key {key!r}: unsharded {expected.get(key)}, sharded {found.get(key)}")
            wrong += [f"misplaced: {row}" for row in self.shop.misplaced()]
        if wrong:
            step = units.Step(b"", f"{len(wrong)} keys differ: {wrong[:6]}")
            flat = [line for context in self.log for line in context if not re.match(r"\s*SELECT", line)]
            fault = self.fault("contents of the tables", "the same", "other rows", step, [])
            fault.context = flat[-40:]
        size = sum(count for rows in plain.values() for count, _ in rows.values())
        start = sum(len(rows) for rows in self.shop.rows.values())
        if wrong or not 0.75 * start < size < 1.3 * start or self.statistics.checks % 4 == 0:
            self.shop.reload(*self.places)
        self.log.clear()
        return not wrong

    # -- making a fault small ----------------------------------------------------------------------

    def shrink(self, sql):
        router, plain = self.connect_router(), self.connect_plain()
        rollback = client.query("ROLLBACK")

        def fails(text):
            self.tried += 1
            answers = []
            try:
                for one in (router, plain):
                    one.answer(client.query("BEGIN"))
                    answers.append(one.answer(client.query(text)))
            except Gone:
                return False
            finally:
                for one in (router, plain):
                    try:
                        one.answer(rollback)
                    except Gone:
                        pass
            got, expected = answers
            if any(r.error and r.error.refusal for r in got.results) or len(got.results) != 1 or len(expected.results) != 1:
                return False
            return differs(got.results[0], expected.results[0]) in ("one fails", "SQLSTATE", "command tag", "rows")

        try:
            return shrink(sql, fails) if fails(sql) else None
        finally:
            router.close()
            plain.close()

    def close(self):
        for session in self.sessions:
            session.close()

    def told(self):
        """The faults, the first of each kind."""
        seen, told = Counter(), []
        for fault in self.faults:
            seen[fault.kind] += 1
            if seen[fault.kind] <= MOST_OF_A_KIND:
                told.append(str(fault))
        told += [f"{count} times: {kind}" for kind, count in self.kinds.most_common() if count > MOST_OF_A_KIND]
        return "\n".join(told)

    def summary(self, most=12):
        s = self.statistics
        lines = [str(s)]
        for level in (1, 2):
            seen = set()
            for code, show, message, constructs in s.refused[level]:
                identity = (code, tuple(constructs), re.sub(r"\W*\d+\W*", "", message)[:60])
                if identity in seen:
                    continue
                seen.add(identity)
                if len(seen) <= most:
                    lines.append(f"refused, level {level} {constructs}: {message}\n      {show}")
        if s.constructs:
            lines.append(f"constructs of refused level 2 statements: {dict(s.constructs.most_common())}")
        if s.messages:
            lines.append(f"same SQLSTATE, other message: {dict(s.messages.most_common(5))}")
        return "\n".join(lines)


class CaseRunner(Runner):
    """Runs the hand-written statements; `wrong` collects what is not as each line asks for."""

    def case(self, session, expectation, statement, context=(), extended=False):
        """Returns None, or what is wrong."""
        self.seed, self.number = "hand-written", 0
        data = client.query(statement)
        if extended:
            data = client.parse("", statement) + client.bind("", "", []) + client.describe(b"P", "") + client.execute() + client.SYNC
        template = units.Plain(ordered=expectation == "ordered" or expectation == "ok" and statement.startswith("FETCH"),
                               shape_only=expectation == "shape", writes=True)
        step = units.Step(data, statement, [template] * 4, "", 3, units.FAIL, True)
        before, codes = len(self.faults), Counter(self.statistics.codes)
        self.step(session, step, list(context))
        code = next(iter(self.statistics.codes - codes), None)
        if len(self.faults) > before:
            wrong = str(self.faults[-1])
            del self.faults[before:]
            self.recover()
            return wrong
        allowed = set(expectation.split("/"))
        if "any" in allowed:
            return None
        if code:
            return None if code in allowed or "R" in allowed else f"{expectation}, but it is refused ({code}): {statement}"
        return None if allowed & {"ok", "ordered", "shape"} else f"{expectation}, but it is accepted: {statement}"
