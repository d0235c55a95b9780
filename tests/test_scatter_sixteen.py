"""Sixteen shards: the same answers, with as many statements a page."""

import pytest

from conftest import remove
from support.order_cluster import OrdersCluster, make_orders, newest_first, numbers
from support.wait import wait_until

SHARDS = 16
SMALL = {"shared_buffers": "2MB", "max_connections": "20", "max_wal_senders": "0", "wal_level": "minimal",
         "autovacuum": "off", "shared_preload_libraries": ""}


@pytest.fixture(scope="module")
def module_cluster(owner, new_folder, request, router_binary):
    cluster = OrdersCluster(new_folder(request.module.__name__), owner, shards=SHARDS, rows=make_orders(3000, 100),
                            shard_settings=SMALL, router_settings={"pool": {"size": 2}})
    try:
        yield cluster.up()
    finally:
        cluster.down()
        remove(cluster.base)


def test_sixteen_shards_answer_as_one(cluster_of_sixteen):
    cluster = cluster_of_sixteen
    truth = [order.order_id for order in newest_first(cluster.orders, 7)]
    client = cluster.pg_client()
    pages = cluster.pages(client, scope={"merchant_id": 7})
    mark = cluster.mark()
    walked = list(pages.walk(37))
    assert numbers(walked) == truth
    assert cluster.issued(mark) == dict.fromkeys(cluster.shards, len(walked))
    assert numbers([pages.page(before=walked[-1].cursors[-1], size=1000)]) == truth[:-1]
    # Budgets count shards.
    mark = cluster.mark()
    client.ok("SET interlock.max_fan_out = 15")
    pages.ask(size=37).refused("IL203", "I")
    assert sum(cluster.issued(mark).values()) == 0
    client.ok("SET interlock.max_fan_out = 16")
    assert numbers([pages.page(size=37)]) == truth[:37]
    # Plain statements.
    client.ok("SET interlock.scatter = on")
    control = cluster.whole_client()
    for text in ("SELECT count(*), sum(quantity), avg(amount) FROM orders",
                 "SELECT status, count(*) FROM orders GROUP BY status ORDER BY status",
                 "SELECT order_id, amount FROM orders ORDER BY amount DESC NULLS LAST, order_id LIMIT 100 OFFSET 50"):
        assert client.ok(text).rows == control.ok(text).rows
    # Two of sixteen are late.
    client.ok("SET interlock.page_timeout = '500ms'")
    holders = [cluster.connect(shard, autocommit=False) for shard in ("s11", "s3")]
    for holder in holders:
        holder.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
    pages.ask(size=37).refused("IL204", "I")
    client.ok("SET interlock.partial_pages = on")
    page = pages.page(size=37)
    assert page.missing == ["s11", "s3"] and not page.complete
    assert numbers([page]) == [order.order_id for order in newest_first(cluster.orders, 7)
                               if cluster.shard_name(order.user_id) not in ("s3", "s11")][:37]
    for holder in holders:
        holder.rollback()
    wait_until(lambda: cluster.lock_waiters() == 0, 5, "no lock waiter is left")
    assert numbers([pages.page(size=37)]) == truth[:37]


@pytest.fixture
def cluster_of_sixteen(module_cluster):
    yield module_cluster
    module_cluster.end_test()
