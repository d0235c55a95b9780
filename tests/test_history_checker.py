"""The judge of histories is judged: each forged fault is found, and a clean history is clean."""

import pytest

from support.history import OK, REFUSED, UNKNOWN, Event, History, Rows


def transfer(token, legs, outcome=OK):
    return Event("a", "transfer", token, token + 0.5, outcome, token=token, legs=legs)


def put(value, began, ended, outcome=OK, register=(1, 7)):
    return Event("a", "set", began, ended, outcome, register=register, value=value)


def seen(value, began, ended, client="b", register=(1, 7)):
    return Event(client, "get", began, ended, OK, register=register, value=value)


def forged():
    """Two transfers, one that was refused, one of which nobody knows; a register set to 1 and 2, 3 refused."""
    history = History({1: 100, 2: 100})
    for event in [transfer(1, ((1, -10), (2, 10))), transfer(2, ((2, -5), (1, 5))), transfer(3, ((1, -7), (2, 7)), REFUSED),
                  transfer(4, ((1, -1), (2, 1)), UNKNOWN),
                  put(1, 10, 11), put(2, 20, 21), put(3, 30, 31, REFUSED),
                  seen(1, 12, 13), seen(1, 15, 20.5), seen(2, 20.2, 20.6), seen(2, 22, 23)]:
        history.add(event)
    rows = Rows([(1, 95), (2, 105)], [(1, 1, -10), (2, 1, 10), (2, 2, -5), (1, 2, 5)], [(1, 7, 2)])
    return history, rows


def test_a_clean_history_has_no_faults():
    history, rows = forged()
    assert history.faults(rows) == []


def test_what_is_unknown_may_be_there_if_it_is_whole():
    history, rows = forged()
    rows.postings += [(1, 4, -1), (2, 4, 1)]
    rows.balances = [(1, 94), (2, 106)]
    assert history.faults(rows) == []


def lost(history, rows):
    rows.postings.remove((1, 2, 5))


def lost_whole(history, rows):
    rows.postings = [row for row in rows.postings if row[1] != 2]
    rows.balances = [(1, 90), (2, 110)]


def doubled(history, rows):
    rows.postings.append((1, 2, 5))


def refused_but_there(history, rows):
    rows.postings += [(1, 3, -7), (2, 3, 7)]
    rows.balances = [(1, 88), (2, 112)]


def half_of_the_unknown(history, rows):
    rows.postings.append((1, 4, -1))


def posted_by_nobody(history, rows):
    rows.postings += [(1, 99, 0)]


def balance_without_its_posting(history, rows):
    rows.balances = [(1, 94), (2, 105)]


def balance_moved(history, rows):
    rows.balances = [(1, 94), (2, 106)]


def account_gone(history, rows):
    rows.balances = [(1, 95)]


def account_twice(history, rows):
    rows.balances.append((1, 95))


def register_lost_a_write(history, rows):
    rows.registers = [(1, 7, 1)]


def register_has_what_was_refused(history, rows):
    rows.registers = [(1, 7, 3)]


def register_gone(history, rows):
    rows.registers = []


def register_twice(history, rows):
    rows.registers *= 2


def read_went_back(history, rows):
    history.add(seen(1, 24, 25))


def read_by_another_went_back(history, rows):
    """Both overlap with the write, but the second began after the first had seen it."""
    history.add(seen(1, 20.7, 20.8, client="c"))


def read_of_what_was_refused(history, rows):
    history.add(seen(3, 32, 33))


def read_from_the_future(history, rows):
    history.add(seen(2, 16, 17))


def read_misses_what_was_acknowledged(history, rows):
    history.add(seen(0, 12, 14))


def total_not_whole(history, rows):
    history.add(Event("a", "total", 1, 2, OK, value=199, text="200"))


def update_of_no_row(history, rows):
    history.add(Event("a", "set", 40, 41, "wrong", register=(1, 7), value=4, text="UPDATE 0"))


FORGERIES = [lost, lost_whole, doubled, refused_but_there, half_of_the_unknown, posted_by_nobody, balance_without_its_posting,
             balance_moved, account_gone, account_twice, register_lost_a_write, register_has_what_was_refused, register_gone,
             register_twice, read_went_back, read_by_another_went_back, read_of_what_was_refused, read_from_the_future,
             read_misses_what_was_acknowledged, total_not_whole, update_of_no_row]


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_a_forged_fault_is_found(forge):
    history, rows = forged()
    forge(history, rows)
    assert history.faults(rows)


def test_a_value_of_unknown_outcome_may_be_read_from_then_on_or_never():
    for final, read in [(2, None), (3, None), (3, 3)]:
        history = History({})
        for event in [put(2, 1, 2), put(3, 3, 4, UNKNOWN)] + ([seen(read, 3.5, 5)] if read else []):
            history.add(event)
        assert history.faults(Rows(registers=[(1, 7, final)])) == []
    history.add(seen(2, 6, 7))
    assert history.faults(Rows(registers=[(1, 7, 3)])), "3 had been read before"


def test_how_long_nobody_got_on_is_the_longest_gap_between_acknowledgements():
    history = History({})
    for began, ended in [(0, 1), (1, 2), (1, 5), (5, 6)]:
        history.add(Event("a", "post", began, ended, OK, token=ended, group="g"))
    assert history.longest_gap("g") == 3
    assert history.longest("g") == 4
    assert history.rate("g", 0, 6) == 0.5
