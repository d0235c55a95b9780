"""Statements the tests use again and again."""

SELECT = "SELECT * FROM account WHERE account_id = ?"
BALANCE = "SELECT balance FROM account WHERE account_id = ?"
INSERT = "INSERT INTO account (account_id, owner, balance, version) VALUES (?, ?, ?, ?)"
DEBIT = "UPDATE account SET balance = balance - ? WHERE account_id = ?"
CREDIT = "UPDATE account SET balance = balance + ? WHERE account_id = ?"
DELETE = "DELETE FROM account WHERE account_id = ?"


def ok(answer):
    """The answer, once it is known to be OK."""
    assert answer.ok, answer.raw
    return answer


def refused(answer, code, tx=None):
    """The answer, once it is known to be a refusal with this code (and transaction state)."""
    assert not answer.ok and answer.code == code, f"expected {code}: {answer.raw}"
    assert tx is None or answer.tx == tx, f"expected tx={tx}: {answer.raw}"
    return answer
