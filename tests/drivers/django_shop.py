"""Django's ORM: models of a sharded shop and what an application does with them. Run by tests/test_drivers_python.py.

An application keeps its shard key in every model and in every query. Django knows one column as the primary
key, so a model whose key has two says in its own base class that updates and deletes name both (Sharded).
What it cannot do is `inspectdb`: that selects from the tables without a key.
"""

import threading
from decimal import Decimal

import django
import psycopg2
from django.conf import settings

import checks
from checks import check, s0, s1

OPTIONS = {"sslmode": "require", "application_name": "shop"}
settings.configure(
    DATABASES={"default": {
        "ENGINE": "django.db.backends.postgresql", "HOST": checks.HOST, "PORT": checks.PORT,
        "NAME": checks.DATABASE, "USER": checks.USER, "PASSWORD": checks.PASSWORD, "OPTIONS": OPTIONS,
        "CONN_MAX_AGE": None, "TIME_ZONE": "Asia/Tokyo",
    }},
    INSTALLED_APPS=["django.contrib.postgres"], USE_TZ=True, TIME_ZONE="Europe/Berlin",
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField")
django.setup()

from django.contrib.postgres.fields import ArrayField  # noqa: E402
from django.db import IntegrityError, connection, models, transaction  # noqa: E402
from django.db.models import Count, Exists, F, OuterRef, Prefetch, Q, Sum  # noqa: E402
from django.db.utils import DatabaseError  # noqa: E402


class Sharded(models.Model):
    """Updates and deletes of one object name its account, so that they go to its shard."""

    class Meta:
        abstract = True

    def _do_update(self, base_qs, *args):
        return super()._do_update(base_qs.filter(account_id=self.account_id), *args)

    def delete(self):
        return type(self).objects.filter(account_id=self.account_id, pk=self.pk).delete()


class Account(models.Model):
    account_id = models.BigIntegerField(primary_key=True)
    name = models.TextField()
    balance = models.DecimalField(max_digits=14, decimal_places=2, default=0)
    opened = models.DateField(default="2024-01-01")
    settings = models.JSONField(null=True)
    tags = ArrayField(models.TextField(), default=list)
    picture = models.BinaryField(null=True)

    class Meta:
        app_label, managed, db_table = "shop", False, "account"


class Order(Sharded):
    account = models.ForeignKey(Account, models.DO_NOTHING, related_name="orders")
    order_id = models.BigIntegerField(primary_key=True)
    status = models.TextField(default="new")
    placed_at = models.DateTimeField(default="2024-05-01 12:00+00")
    note = models.TextField(null=True)

    class Meta:
        app_label, managed, db_table = "shop", False, "orders"


class Item(Sharded):
    account = models.ForeignKey(Account, models.DO_NOTHING, related_name="items")
    order_number = models.BigIntegerField(db_column="order_id")
    # The join is over the whole key.
    order = models.ForeignObject(Order, models.DO_NOTHING, from_fields=["account_id", "order_number"],
                                 to_fields=["account_id", "order_id"], related_name="items")
    line = models.IntegerField(primary_key=True)
    sku = models.TextField()
    quantity = models.IntegerField()
    price = models.DecimalField(max_digits=12, decimal_places=2)

    class Meta:
        app_label, managed, db_table = "shop", False, "order_items"


def django_error(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except DatabaseError as error:
        return [type(error).__name__, error.__cause__.pgcode]
    return ["no error", None]


def balance(key):
    return Account.objects.get(account_id=key).balance


@check("connects with the application's time zone")
def _():
    with connection.cursor() as cursor:
        cursor.execute("SHOW timezone")
        return [cursor.fetchone(), connection.pg_version, connection.is_usable(),
                connection.ensure_timezone(), connection.features.has_select_for_update]


@check("the tables are introspected")
def _():
    with connection.cursor() as cursor:
        inspect = connection.introspection
        return [sorted(inspect.table_names(cursor)),
                sorted(inspect.get_relations(cursor, "order_items").items()),
                sorted(inspect.get_constraints(cursor, "account")), inspect.get_sequences(cursor, "account")]


@check("objects are created, got, changed, refreshed and deleted")
def _():
    key = s0()
    order = Order.objects.create(account_id=key, order_id=key * 100 + 7, note="it's 100% ☃")
    seen = [order.pk - key * 100, Order.objects.get(account_id=key, order_id=order.pk).note]
    order.status = "paid"
    order.save()
    seen.append(Order.objects.filter(account_id=key, pk=order.pk).values("status", "note").get())
    order.note = None
    order.save(update_fields=["note"])
    seen.append(Order.objects.filter(account_id=key, note__isnull=True).count())
    seen.append(order.delete())
    return [*seen, Order.objects.filter(account_id=key).count()]


@check("an account of every field type is saved and read back")
def _():
    new = 20_000_000
    account = Account(account_id=new, name="Ada ☃", balance=Decimal("1.50"), settings={"a": [1, None, "ü"]},
                      tags=["x", "", 'q"'], picture=b"\0\xff")
    account.save(force_insert=True)
    account.balance += 1
    account.save()
    again = Account.objects.get(pk=new)
    seen = [again.name, again.balance, str(again.opened), again.settings, again.tags, bytes(again.picture).hex()]
    seen.append(Account.objects.filter(pk=new, tags__contains=["x"], settings__a__1=None).exists())
    again.refresh_from_db()
    Account.objects.filter(pk=new)._raw_delete("default")
    return [*seen, Account.objects.filter(pk=new).exists()]


@check("get_or_create, update_or_create, bulk_create and update with F")
def _():
    key = s1()
    first, made = Order.objects.get_or_create(account_id=key, order_id=1, defaults={"note": "made"})
    second, again = Order.objects.get_or_create(account_id=key, order_id=1, defaults={"note": "not made"})
    third, updated = Order.objects.update_or_create(account_id=key, order_id=1, defaults={"note": "changed"})
    bulk = Order.objects.bulk_create([Order(account_id=key, order_id=n, note=f"b{n}") for n in range(2, 30)],
                                     batch_size=10)
    ignored = Order.objects.bulk_create([Order(account_id=key, order_id=n) for n in (1, 30)], ignore_conflicts=True)
    changed = Account.objects.filter(pk=key).update(balance=F("balance") * 2 + 1)
    return [made, again, second.note, updated, third.note, len(bulk), len(ignored), changed, balance(key),
            Order.objects.filter(account_id=key).count()]


@check("bulk_update of one account")
def _():
    key = s0()
    orders = list(Order.objects.filter(account_id=key).order_by("pk"))
    for n, order in enumerate(orders):
        order.note = f"bulk {n}"
    Order.objects.filter(account_id=key).bulk_update(orders, ["note"])
    return list(Order.objects.filter(account_id=key).order_by("pk").values_list("note", flat=True))


@check("select_related, prefetch_related and reverse relations of one account")
def _():
    key = s0()
    orders = Order.objects.select_related("account").filter(account_id=key).order_by("order_id")
    seen = [[order.account.name == f"name{key}", order.order_id - key * 100] for order in orders]
    items = Item.objects.select_related("order", "account").filter(account_id=key).order_by("order_number", "line")
    seen.append([[item.order.note, item.account.balance, item.line] for item in items])
    account = Account.objects.prefetch_related("orders").get(pk=key)
    seen.append(sorted(order.note for order in account.orders.all()))
    mine = Prefetch("items", Item.objects.filter(account_id=key).order_by("order_number", "line"), to_attr="lines")
    seen.append([item.line for item in Account.objects.prefetch_related(mine).get(pk=key).lines])
    seen.append(account.orders.filter(note="note 2").count())
    return seen


@check("aggregates, annotations, sub-queries, Q and slices of one account")
def _():
    key = s1()
    mine = Order.objects.filter(account_id=key)
    lines = Item.objects.filter(account_id=key)
    return [
        lines.aggregate(total=Sum(F("price") * F("quantity")), n=Count("*")),
        list(lines.values("sku").annotate(n=Count("line")).order_by("sku")),
        mine.filter(Q(note="note 1") | Q(note="note 2")).exclude(status="paid").count(),
        mine.annotate(full=Exists(lines.filter(order_number=OuterRef("order_id"), line=2))).filter(full=True).count(),
        [order.pk - key * 100 for order in mine.order_by("-pk")[1:3]],
        mine.first().note, mine.filter(note__icontains="OTE 3").exists(), mine.filter(pk__in=[key * 100 + 1, 5]).count(),
        mine.dates("placed_at", "year")[0].year, mine.union(mine.filter(note="note 1")).count(),
    ]


@check("atomic blocks with savepoints")
def _():
    key = s0()
    account = Account.objects.filter(pk=key)
    with transaction.atomic():
        account.update(balance=F("balance") + 1)
        try:
            with transaction.atomic():
                account.update(balance=F("balance") + 10)
                Account.objects.create(pk=key, name="again")
        except IntegrityError as error:
            seen = [error.__cause__.pgcode, error.__cause__.diag.constraint_name]
        with transaction.atomic():
            account.update(balance=F("balance") + 100)
        point = transaction.savepoint()
        account.update(balance=0)
        transaction.savepoint_rollback(point)
        with transaction.atomic(savepoint=False):
            account.update(balance=F("balance") + 1000)
    return [*seen, balance(key)]


@check("an atomic block fails whole, and on_commit runs after the commit only")
def _():
    key = s1()
    called = []
    account = Account.objects.filter(pk=key)

    def overdraw(amount):
        with transaction.atomic():
            transaction.on_commit(lambda: called.append(amount))
            account.update(balance=F("balance") + 1)
            account.update(balance=F("balance") - amount)

    seen = [django_error(overdraw, 5000), balance(key), django_error(overdraw, 500), balance(key), called]
    with transaction.atomic():
        account.update(balance=7)
        transaction.set_rollback(True)
    return [*seen, balance(key)]


@check("a deferred constraint fails the end of the block")
def _():
    key = s0()

    def block():
        with transaction.atomic():
            Item.objects.bulk_create([Item(account_id=key, order_number=9, line=1, sku="x", quantity=1, price=1)])

    return [django_error(block), Item.objects.filter(account_id=key).count()]


@check("select_for_update, also of those not locked")
def _():
    key = s1()
    seen = []

    def rival():
        with transaction.atomic():
            seen.append(django_error(lambda: Account.objects.select_for_update(nowait=True).get(pk=key)))
        with transaction.atomic():
            seen.append(Account.objects.select_for_update(skip_locked=True).filter(pk=key).count())
            seen.append(len(Account.objects.select_for_update(skip_locked=True).filter(pk=key)))
        connection.close()

    with transaction.atomic():
        account = Account.objects.select_for_update().get(pk=key)
        thread = threading.Thread(target=rival)
        thread.start()
        thread.join()
        account.balance += 1
        account.save()
    return [*seen, balance(key)]


@check("iterator() in a block reads in parts")
def _():
    key = s0()
    with transaction.atomic():
        orders = Order.objects.filter(account_id=key).order_by("pk").iterator(chunk_size=2)
        return [order.note for order in orders]


@check("raw queries, cursors, executemany and parameters")
def _():
    key = s1()
    with connection.cursor() as cursor:
        cursor.execute("SELECT note, %s FROM orders WHERE account_id = %s ORDER BY order_id", ["it's %", key])
        seen = [cursor.fetchall()]
        cursor.executemany("UPDATE orders SET note = %s WHERE account_id = %s AND order_id = %s",
                           [(f"e{n}", key, key * 100 + n) for n in (1, 2)])
        seen.append(cursor.rowcount)
    orders = Order.objects.raw("SELECT * FROM orders WHERE account_id = %s ORDER BY order_id", [key])
    return [*seen, [order.note for order in orders]]


@check("errors have Django's class and the SQLSTATE")
def _():
    key = s0()
    account = Account.objects.filter(pk=key)
    return [django_error(account.update, balance=-1), django_error(Account.objects.create, pk=key, name="again"),
            django_error(account.update, name=None), django_error(account.update, balance=Decimal(10) ** 11 * 99),
            django_error(account.extra(select={"x": "1/0"}).first), django_error(account.extra(where=["nothing"]).first),
            balance(key)]


@check("threads have a connection each")
def _():
    keys, faults = [s0(), s1()], []

    def work(n):
        try:
            for _ in range(10):
                with transaction.atomic():
                    account = Account.objects.select_for_update().get(pk=keys[n % 2])
                    account.balance += 1
                    account.save(update_fields=["balance"])
        except Exception as error:
            faults.append(repr(error))
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [faults, [balance(key) for key in keys]]


@check("the connection is checked and made again")
def _():
    key = s1()
    seen = [balance(key)]
    connection.close()
    seen.append(balance(key))
    connection.close_if_unusable_or_obsolete()
    return [*seen, connection.connection is not None, connection.is_usable()]


@check("router: refused queries are errors of the statement and the block can be left")
def _():
    here, there = s0(), s1()
    seen = [django_error(Account.objects.count), django_error(lambda: list(Order.objects.filter(note="x"))),
            django_error(Order.objects.filter(order_id=1).delete),
            django_error(lambda: list(Account.objects.filter(pk__in=[here, there])))]

    def transfer():
        with transaction.atomic():
            Account.objects.filter(pk=here).update(balance=F("balance") - 100)
            Account.objects.filter(pk=there).update(balance=F("balance") + 100)

    seen.append(django_error(transfer))
    assert [code for _, code in seen] == ["IL010", "IL010", "IL010", "IL011", "IL012"], seen
    assert (balance(here), balance(there)) == (1000, 1000)

    # Without a block its cursor would have to outlive the transaction.
    try:
        list(Order.objects.filter(account_id=here).iterator())
        raise AssertionError("a cursor WITH HOLD was not refused")
    except (DatabaseError, psycopg2.Error) as error:  # Django then tries to close it
        while isinstance(error, Exception) and getattr(error, "pgcode", None) != "IL025":
            error = error.__context__
        assert error, "not refused as a cursor"


checks.run()
