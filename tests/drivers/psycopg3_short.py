"""Short forms that the psycopg 3 programs share."""

import psycopg

BALANCE = "SELECT balance FROM account WHERE account_id = %s"
CREDIT = "UPDATE account SET balance = balance + %s WHERE account_id = %s"
NEW_ORDER = "INSERT INTO orders (account_id, order_id, note) VALUES (%s, %s, %s)"


def connect(**options):
    return psycopg.connect(**{"sslmode": "require", "autocommit": True, **options})


def balance(key):
    """As somebody else sees it."""
    with connect() as other:
        return other.execute(BALANCE, (key,)).fetchone()[0]


def error_of(function, *args, **kwargs):
    """What the driver raises: its class, the SQLSTATE and the first line of the message."""
    try:
        function(*args, **kwargs)
    except psycopg.Error as error:
        return [type(error).__name__, error.sqlstate, str(error.diag.message_primary or error).split("\n")[0]]
    return ["no error", None, None]
