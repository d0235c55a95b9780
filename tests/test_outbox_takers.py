"""Several takers of one stream at once: each always gets something while there is something, and each key's records in order."""

import contextlib
import os
import random
import signal
import threading

import pytest

TAKERS, BATCH, KEYS, CHANGES = 4, 50, 400, 60


@pytest.fixture
def stream(instance):
    instance.sql("CREATE TABLE counted (id int PRIMARY KEY, n int NOT NULL); SELECT interlock.outbox_attach('counted', stream => 'counted')")
    yield "counted"
    instance.sql("SELECT interlock.outbox_detach('counted', 'counted', true, true); DROP TABLE counted")
    instance.check_log()


class Disturbance:
    """Stops one of the backends after another for up to 30 ms, as a busy machine does: whoever was stopped finds that the
    others have been quicker, again and again."""

    def __init__(self, backends):
        self.backends = backends
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while self.backends and not self.over.wait(0.001):
            backend = random.choice(self.backends)
            os.kill(backend, signal.SIGSTOP)
            self.over.wait(random.random() * 0.03)
            os.kill(backend, signal.SIGCONT)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *fault):
        self.over.set()
        self.thread.join()


@pytest.mark.parametrize("disturbed", [False, True], ids=["undisturbed", "disturbed"])
def test_takers_that_want_the_same_records_do_not_come_back_with_nothing(instance, stream, disturbed):
    with instance.connect() as writer:
        writer.execute("INSERT INTO counted SELECT i, 0 FROM generate_series(1, %s) i", (KEYS,))
        for _ in range(CHANGES - 1):
            writer.execute("UPDATE counted SET n = n + 1")
    taken, empty, faults = [], [], []

    def take(session):
        try:
            while True:
                with session.transaction():
                    records = session.execute("SELECT seq, key ->> 'id', new ->> 'n' FROM interlock.outbox_take(%s, %s)",
                                              (BATCH, stream)).fetchall()
                    # (In order of the taking: a key's next record is not given out before this transaction has ended.)
                    taken.extend(records)
                    if records:
                        session.execute("SELECT interlock.outbox_done(%s)", ([record[0] for record in records],))
                if not records and len(taken) < KEYS * CHANGES - 2 * TAKERS * BATCH:
                    empty.append(len(taken))
                if not records and len(taken) >= KEYS * CHANGES - TAKERS * BATCH:
                    return
        except Exception as fault:
            faults.append(fault)

    with contextlib.ExitStack() as until_undisturbed:
        sessions = [until_undisturbed.enter_context(instance.connect()) for _ in range(TAKERS)]
        until_undisturbed.enter_context(Disturbance([s.info.backend_pid for s in sessions] if disturbed else []))
        takers = [threading.Thread(target=take, args=(session,)) for session in sessions]
        for taker in takers:
            taker.start()
        for taker in takers:
            taker.join(300)
            assert not taker.is_alive()
    assert faults == []
    assert instance.value("SELECT count(*) FROM interlock.outbox WHERE stream = %s", stream) == 0
    assert len(taken) == len({record[0] for record in taken}) == KEYS * CHANGES
    for key in range(1, KEYS + 1):
        assert [int(record[2]) for record in taken if record[1] == str(key)] == list(range(CHANGES)), key
    assert len(empty) <= 3, f"{len(empty)} times nothing, though there were records: {empty[:20]}"
