"""The orders that page tests read: many ties in time, and order numbers that do not follow it.

12,000 orders of 300 users at 10 merchants, within two hours to the second; merchant 7 has 400 more, all at
one instant. The same rows for the same seed, everywhere.
"""

import datetime
import random
from dataclasses import astuple, dataclass

USERS, MERCHANTS, ORDERS, SECONDS = 300, 10, 12_000, 7200
BUSY, TIED = 7, 400
START = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.timezone.utc)
TIE = START + datetime.timedelta(seconds=SECONDS // 2)

TABLE = """
CREATE TABLE orders (
    order_id bigint PRIMARY KEY,
    user_id bigint NOT NULL,
    merchant_id integer NOT NULL,
    created_at timestamptz NOT NULL,
    amount numeric(12,2) NOT NULL);
GRANT SELECT, INSERT, UPDATE, DELETE ON orders TO app;
"""
# Serves the walks of one merchant, either way.
INDEX = "CREATE INDEX orders_of_merchant ON orders (merchant_id, created_at, order_id);"
# Newest first; the order number decides between orders of one second.
NEWEST_FIRST = "created_at DESC, order_id DESC"


@dataclass(frozen=True)
class Order:
    order_id: int
    user_id: int
    merchant_id: int
    created_at: datetime.datetime
    amount: str

    def place(self):
        """Sorts as NEWEST_FIRST does."""
        return (-self.created_at.timestamp(), -self.order_id)


def make_orders(seed=4, count=ORDERS, tied=TIED):
    chance = random.Random(seed)
    numbers = list(range(1, count + tied + 1))
    chance.shuffle(numbers)

    def order(merchant, when):
        return Order(numbers.pop(), chance.randint(1, USERS), merchant, when, f"{chance.randint(1, 99999) / 100:.2f}")

    orders = [order(chance.randint(1, MERCHANTS), START + datetime.timedelta(seconds=chance.randrange(SECONDS)))
              for _ in range(count)]
    return orders + [order(BUSY, TIE) for _ in range(tied)]


def load(connection, orders):
    """Copies the orders into the table `orders`."""
    with connection.cursor().copy("COPY orders FROM STDIN") as copy:
        for order in orders:
            copy.write_row(astuple(order))


def of_merchant(orders, merchant):
    """Its order numbers, newest first: what a whole walk returns."""
    return [order.order_id for order in sorted((o for o in orders if o.merchant_id == merchant), key=Order.place)]
