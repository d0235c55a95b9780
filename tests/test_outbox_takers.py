"""Several takers of one stream at once: each always gets something while there is something, and each key's records in order."""

import threading

import pytest

TAKERS, BATCH, KEYS, CHANGES = 4, 50, 400, 60


@pytest.fixture
def stream(instance):
    instance.sql("CREATE TABLE counted (id int PRIMARY KEY, n int NOT NULL); SELECT interlock.outbox_attach('counted', stream => 'counted')")
    yield "counted"
    instance.sql("SELECT interlock.outbox_detach('counted', 'counted', true, true); DROP TABLE counted")
    instance.check_log()


def test_takers_that_want_the_same_records_do_not_come_back_with_nothing(instance, stream):
    with instance.connect() as writer:
        writer.execute("INSERT INTO counted SELECT i, 0 FROM generate_series(1, %s) i", (KEYS,))
        for _ in range(CHANGES - 1):
            writer.execute("UPDATE counted SET n = n + 1")
    taken, empty, faults = [], [], []

    def take():
        try:
            with instance.connect() as session:
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

    takers = [threading.Thread(target=take) for _ in range(TAKERS)]
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
