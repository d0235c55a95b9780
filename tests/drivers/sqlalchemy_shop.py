"""SQLAlchemy's core and ORM on top of psycopg2. Run by tests/test_drivers_python.py."""

import threading
from decimal import Decimal

import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, insert as pg_insert
from sqlalchemy.ext.declarative import declarative_base

import checks
from checks import check, s0, s1

Base = declarative_base()


class Account(Base):
    __tablename__ = "account"
    account_id = sa.Column(sa.BigInteger, primary_key=True, autoincrement=False)
    name = sa.Column(sa.Text, nullable=False)
    balance = sa.Column(sa.Numeric(14, 2), nullable=False, server_default="0")
    opened = sa.Column(sa.Date, server_default=sa.text("'2024-01-01'"))
    settings = sa.Column(JSONB)
    tags = sa.Column(ARRAY(sa.Text), nullable=False, server_default="{}")
    orders = orm.relationship("Order", back_populates="account", order_by="Order.order_id",
                              cascade="all, delete-orphan")


class Order(Base):
    __tablename__ = "orders"
    account_id = sa.Column(sa.BigInteger, sa.ForeignKey("account.account_id"), primary_key=True)
    order_id = sa.Column(sa.BigInteger, primary_key=True, autoincrement=False)
    status = sa.Column(sa.Text, nullable=False, server_default="new")
    placed_at = sa.Column(sa.DateTime(timezone=True), server_default=sa.text("'2024-05-01 12:00+00'"))
    note = sa.Column(sa.Text)
    account = orm.relationship("Account", back_populates="orders")
    items = orm.relationship("Item", back_populates="order", order_by="Item.line", cascade="all, delete-orphan")


class Item(Base):
    __tablename__ = "order_items"
    __table_args__ = (sa.ForeignKeyConstraint(["account_id", "order_id"], ["orders.account_id", "orders.order_id"]),)
    account_id = sa.Column(sa.BigInteger, primary_key=True)
    order_id = sa.Column(sa.BigInteger, primary_key=True, autoincrement=False)
    line = sa.Column(sa.Integer, primary_key=True, autoincrement=False)
    sku = sa.Column(sa.Text, nullable=False)
    quantity = sa.Column(sa.Integer, nullable=False)
    price = sa.Column(sa.Numeric(12, 2), nullable=False)
    order = orm.relationship("Order", back_populates="items")


ACCOUNT, ORDERS, ITEMS = Account.__table__, Order.__table__, Item.__table__
URL = sa.engine.URL.create("postgresql+psycopg2", checks.USER, checks.PASSWORD, checks.HOST, checks.PORT,
                           checks.DATABASE, query={"sslmode": "require"})
# As in applications: a pool that asks whether a connection lives before it is used.
ENGINE = sa.create_engine(URL, future=True, pool_size=4, pool_pre_ping=True)


def balance(key):
    """As somebody else sees it."""
    with ENGINE.connect() as connection:
        return connection.scalar(sa.select(ACCOUNT.c.balance).where(ACCOUNT.c.account_id == key))


def error_of(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except sa.exc.DBAPIError as error:
        return [type(error).__name__, error.orig.pgcode, error.connection_invalidated]
    return ["no error", None, None]


@check("connects, and the dialect learns about the server")
def _():
    with ENGINE.connect() as connection:
        dialect = ENGINE.dialect
        return [dialect.server_version_info, dialect.default_schema_name, connection.get_isolation_level(),
                connection.default_isolation_level, connection.scalar(sa.select(1)), dialect._has_native_hstore]


@check("core: insert returning, select, join, update, delete")
def _():
    key = s0()
    with ENGINE.begin() as connection:
        seen = [connection.execute(ORDERS.insert().values(account_id=key, order_id=7, note="core")
                                   .returning(ORDERS.c.status, ORDERS.c.placed_at)).one()]
        seen.append(connection.execute(
            sa.select(ORDERS.c.order_id - key * 100, sa.func.sum(ITEMS.c.quantity * ITEMS.c.price))
            .join_from(ORDERS, ITEMS, sa.and_(ORDERS.c.account_id == ITEMS.c.account_id,
                                              ORDERS.c.order_id == ITEMS.c.order_id))
            .where(ORDERS.c.account_id == key).group_by(ORDERS.c.order_id).order_by(sa.text("1"))).all())
        seen.append(connection.execute(ORDERS.update().where(ORDERS.c.account_id == key, ORDERS.c.order_id == 7)
                                       .values(note=ORDERS.c.note + "!").returning(ORDERS.c.note)).scalar_one())
        seen.append(connection.execute(ORDERS.delete().where(ORDERS.c.account_id == key,
                                                             ORDERS.c.order_id.in_([7, 8]))).rowcount)
    return [list(map(str, seen))]


@check("core: many rows at once, upsert, CTE, exists, union, window")
def _():
    key = s1()
    mine = sa.select(ITEMS).where(ITEMS.c.account_id == key).cte("mine")
    with ENGINE.begin() as connection:
        connection.execute(ORDERS.insert(), [{"account_id": key, "order_id": n, "note": f"n{n}"} for n in range(1, 50)])
        upsert = pg_insert(ACCOUNT).values(account_id=key, name="new").returning(ACCOUNT.c.name)
        seen = [connection.scalar(upsert.on_conflict_do_update(index_elements=["account_id"],
                                                               set_={"name": upsert.excluded.name + "er"}))]
        seen.append(connection.execute(sa.select(mine.c.sku, sa.func.count()).group_by(mine.c.sku)
                                       .order_by(mine.c.sku)).all())
        seen.append(connection.scalar(sa.select(sa.func.count()).select_from(ORDERS).where(
            ORDERS.c.account_id == key,
            sa.exists().where(ITEMS.c.account_id == ORDERS.c.account_id, ITEMS.c.order_id == ORDERS.c.order_id,
                              ITEMS.c.account_id == key))))
        seen.append(connection.execute(
            sa.select(sa.literal("o"), sa.func.count()).select_from(ORDERS).where(ORDERS.c.account_id == key)
            .union_all(sa.select(sa.literal("i"), sa.func.count()).select_from(ITEMS).where(ITEMS.c.account_id == key))
            .order_by(sa.text("1"))).all())
        seen.append(connection.execute(
            sa.select(ITEMS.c.line, sa.func.row_number().over(partition_by=ITEMS.c.order_id, order_by=ITEMS.c.line))
            .where(ITEMS.c.account_id == key).order_by(ITEMS.c.order_id, ITEMS.c.line).limit(3)).all())
    return list(map(str, seen))


@check("core: server-side results are fetched in parts")
def _():
    key = s0()
    with ENGINE.connect() as connection:
        result = connection.execution_options(stream_results=True, max_row_buffer=2).execute(
            sa.select(ITEMS.c.line).where(ITEMS.c.account_id == key).order_by(ITEMS.c.order_id, ITEMS.c.line))
        return [[list(part) for part in result.scalars().partitions(4)], connection.in_transaction()]


@check("core: nested transactions and isolation levels")
def _():
    key = s1()
    level = sa.select(sa.func.current_setting("transaction_isolation")).select_from(ACCOUNT).where(
        ACCOUNT.c.account_id == key)
    credit = ACCOUNT.update().where(ACCOUNT.c.account_id == key)
    with ENGINE.connect() as connection, connection.begin():
        connection.execute(credit.values(balance=ACCOUNT.c.balance + 1))
        try:
            with connection.begin_nested():
                connection.execute(credit.values(balance=-1))
        except sa.exc.IntegrityError as error:
            seen = [error.orig.pgcode]
        with connection.begin_nested():
            connection.execute(credit.values(balance=ACCOUNT.c.balance + 10))
    for wanted in ("SERIALIZABLE", "REPEATABLE READ", "READ COMMITTED", "AUTOCOMMIT"):
        with ENGINE.connect().execution_options(isolation_level=wanted) as connection:
            seen.append([connection.scalar(level), connection.get_isolation_level()])
    with ENGINE.connect().execution_options(postgresql_readonly=True, postgresql_deferrable=True,
                                            isolation_level="SERIALIZABLE") as connection:
        seen.append(error_of(connection.execute, credit.values(balance=5)))
    with ENGINE.connect() as connection:
        seen.append(connection.scalar(level))
    return [*seen, balance(key)]


@check("ORM: an account with orders and items is made, read back, changed and deleted")
def _():
    new = 10_000_000
    with orm.Session(ENGINE) as session:
        session.add(Account(account_id=new, name="Ada", balance=Decimal("12.30"), tags=["x"], settings={"a": 1}, orders=[
            Order(order_id=1, note="first", items=[Item(line=n, sku=f"s{n}", quantity=n, price=n) for n in (1, 2, 3)]),
            Order(order_id=2, note="second")]))
        session.commit()
    with orm.Session(ENGINE) as session:
        account = session.get(Account, new)
        seen = [account.name, str(account.balance), account.tags, account.settings, str(account.opened),
                [[order.note, order.status, [item.sku for item in order.items]] for order in account.orders]]
        account.orders[0].items.pop()
        account.orders[0].items[0].quantity = 100
        account.orders.append(Order(order_id=3, items=[Item(line=1, sku="late", quantity=1, price=1)]))
        del account.orders[1]
        account.balance += 1
        session.commit()
        session.refresh(account)
        seen.append([str(account.balance), [[order.order_id, [[item.line, item.quantity] for item in order.items]]
                                            for order in account.orders]])
        session.delete(account)
        session.commit()
        seen.append(session.get(Account, new) is None)
    return seen


@check("ORM: eager loading by select and by inner join")
def _():
    key = s1()
    seen = []
    for name, load in (("selectin", orm.selectinload(Account.orders).selectinload(Order.items)),
                       ("joined", orm.joinedload(Account.orders, innerjoin=True)
                        .joinedload(Order.items, innerjoin=True))):
        with orm.Session(ENGINE) as session:
            account = session.execute(sa.select(Account).where(Account.account_id == key).options(load)
                                      ).unique().scalar_one()
            session.expunge_all()  # from here on nothing can be loaded late
            seen.append([name, [[item.line for item in order.items] for order in account.orders]])
    return seen


@check("ORM: eager loading by outer join")
def _():
    key = s0()
    with orm.Session(ENGINE) as session:
        account = session.execute(
            sa.select(Account).where(Account.account_id == key)
            .options(orm.joinedload(Account.orders).joinedload(Order.items))).unique().scalar_one()
        return [[item.line for item in order.items] for order in account.orders]


@check("ORM: queries of one account, FOR UPDATE, bulk update and delete")
def _():
    key = s1()
    with orm.Session(ENGINE) as session:
        rows = session.execute(
            sa.select(Order.order_id - key * 100, Item.line).join(Order.items)
            .where(Order.account_id == key, Item.quantity > 1).order_by(Order.order_id, Item.line)).all()
        locked = session.execute(sa.select(Account).where(Account.account_id == key).with_for_update()).scalar_one()
        locked.balance -= 100
        session.flush()
        changed = session.execute(sa.update(Order).where(Order.account_id == key).values(status="paid")
                                  .execution_options(synchronize_session=False)).rowcount
        gone = session.query(Item).filter_by(account_id=key, line=2).delete(synchronize_session=False)
        count = session.query(Item).filter(Item.account_id == key).count()
        session.commit()
    return [list(map(list, rows)), changed, gone, count, balance(key)]


@check("ORM: errors keep their SQLSTATE and the session can be rolled back")
def _():
    key = s0()
    with orm.Session(ENGINE) as session:
        session.add(Account(account_id=key, name="again"))
        seen = [error_of(session.commit)]
        session.rollback()
        session.get(Account, key).balance = -1
        seen.append(error_of(session.flush))
        session.rollback()
        with session.begin_nested():
            session.get(Account, key).balance += 5
        session.commit()
        return [*seen, str(session.get(Account, key).balance)]


@check("reflection of the tables")
def _():
    inspector = sa.inspect(ENGINE)
    return [sorted(inspector.get_table_names()), inspector.get_schema_names() != [],
            [[column["name"], str(column["type"]), column["nullable"]] for column in inspector.get_columns("orders")],
            inspector.get_pk_constraint("order_items")["constrained_columns"],
            [key["referred_table"] for key in inspector.get_foreign_keys("order_items")],
            [index["name"] for index in inspector.get_indexes("account")],
            [constraint["name"] for constraint in inspector.get_check_constraints("account")],
            sa.Table("account", sa.MetaData(), autoload_with=ENGINE).columns.keys()]


@check("pooled connections serve many threads")
def _():
    keys = [s0(), s1()]
    faults = []

    def work(n):
        try:
            for _ in range(10):
                with orm.Session(ENGINE) as session, session.begin():
                    session.get(Account, keys[n % 2], with_for_update=True).balance += 1
        except Exception as error:
            faults.append(repr(error))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [faults, [balance(key) for key in keys]]


@check("router: SQLAlchemy sees a refusal as an error of the statement, not of the connection")
def _():
    here, there = s0(), s1()
    with ENGINE.connect() as connection:
        seen = [error_of(connection.execute, sa.select(ACCOUNT.c.balance))]
        connection.rollback()
        seen.append(error_of(connection.execute, ACCOUNT.delete()))
        connection.rollback()
        connection.execute(ACCOUNT.update().where(ACCOUNT.c.account_id == here).values(balance=0))
        seen.append(error_of(connection.execute,
                                     ACCOUNT.update().where(ACCOUNT.c.account_id == there).values(balance=0)))
        connection.rollback()
        connection.scalar(sa.select(1))
    assert [row[1:] for row in seen] == [["IL010", False], ["IL010", False], ["IL012", False]], seen
    assert (balance(here), balance(there)) == (1000, 1000)


@check("router: the ORM's flush over two shards fails whole")
def _():
    here, there = s0(), s1()
    with orm.Session(ENGINE) as session:
        session.add_all([Order(account_id=here, order_id=1), Order(account_id=there, order_id=1)])
        seen = error_of(session.flush)
        session.rollback()
        assert session.get(Order, (here, 1)) is None
        session.rollback()
        assert session.get(Order, (there, 1)) is None
    assert seen[1] in ("IL011", "IL012"), seen


checks.run()
