"""The web back end of README.md, run as it stands there."""

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from localcluster.ports import free_port
from support import ROOT
from support import orders as data
from support.order_cluster import newest_first
from support.wait import wait_until

README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def program():
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(blocks) == 1
    return blocks[0]


@pytest.fixture(scope="module")
def statements():
    """The SQL before it, up to the first page."""
    section = README.partition("## Keyset pages on a single PostgreSQL")[2].partition("```python")[0]
    code = "\n".join(line[4:] for line in section.splitlines() if line.startswith("    ") and "--" not in line)
    return [statement.strip() for statement in code.split(";") if statement.strip()]


@pytest.fixture(scope="module")
def shop(instance, statements):
    create, declare = statements[1:-2], statements[-2:]
    assert create[-1].endswith("'created_at DESC, order_id DESC')")
    with instance.connect() as connection:
        notices = []
        connection.add_notice_handler(lambda notice: notices.append(notice.severity))
        for statement in create:
            connection.execute(statement)
        assert notices == [], "the README's index does not serve its keyset"
        with connection.cursor().copy("COPY orders FROM STDIN") as copy:
            for order in data.make_orders():
                copy.write_row((order.order_id, order.merchant_id, order.created_at, order.amount))
        connection.execute("GRANT SELECT ON orders TO app")
        first = connection.execute(declare[0]).fetchall()
        assert len(first) == 50
        after = declare[1].replace("...", first[-1][-1])
        assert len(connection.execute(after).fetchall()) == 50
    return instance


@contextmanager
def running(program, folder, database):
    """The program as it stands in the README, on a database of a connection string; yields its address."""
    path = folder / "orders.py"
    path.write_text(program)
    port = free_port()
    log = path.with_suffix(".log").open("wb")
    process = subprocess.Popen([sys.executable, path], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                               env={"DATABASE_URL": database, "PORT": str(port), "PATH": "/usr/bin:/bin"})
    address = f"http://127.0.0.1:{port}"

    def up():
        assert process.poll() is None, path.with_suffix(".log").read_text()
        try:
            urllib.request.urlopen(address, timeout=5)
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False

    try:
        wait_until(up, 20, "the example answers")
        yield address
    finally:
        process.kill()
        process.wait()
        log.close()


@pytest.fixture(scope="module")
def site(shop, program, tmp_path_factory):
    with running(program, tmp_path_factory.mktemp("example"), shop.conninfo("app", "app")) as address:
        yield address


def get(site, path, status=200):
    try:
        with urllib.request.urlopen(site + path, timeout=20) as answer:
            assert answer.status == status
            return json.load(answer)
    except urllib.error.HTTPError as error:
        assert error.code == status, error.read()
        return json.load(error)


def numbers(page):
    return [int(order["order_id"]) for order in page["orders"]]


@pytest.mark.parametrize("size", [37, 300])
def test_its_links_lead_through_all_orders_and_back(site, size):
    expected = data.of_merchant(data.make_orders(), 7)
    seen, pages, path = [], [], f"/merchants/7/orders?size={size}"
    while path:
        page = get(site, path)
        seen += numbers(page)
        pages.append(page)
        path = page["next"]
    assert seen == expected and len(pages) >= len(expected) // size
    assert pages[0]["previous"] is None
    back, path = [], pages[-1]["previous"] or pages[-2]["previous"]
    while path:
        page = get(site, path)
        back = numbers(page) + back
        path = page["previous"]
    assert back == expected[:len(back)] and len(back) > len(expected) - 2 * size - 1


def test_a_client_that_alters_a_cursor_or_asks_for_too_much_is_told(site):
    link = get(site, "/merchants/7/orders?size=5")["next"]
    for path in (link[:-1] + ("A" if link[-1] != "A" else "B"), link.replace("/7/", "/8/"), link + "&before=" + link[-20:],
                 "/merchants/7/orders?size=100000", "/merchants/7/orders?size=0", "/merchants/7/orders?size=x",
                 "/merchants/7/orders?after=%27%20OR%201=1%20--"):
        assert "error" in get(site, path, 400), path
    assert "error" in get(site, "/merchants/x/orders", 404) and "error" in get(site, "/", 404)
    assert get(site, "/merchants/99/orders") == {"orders": [], "next": None, "previous": None}


def test_the_same_program_serves_the_orders_of_three_shards_through_the_router(program, orders, tmp_path):
    database = f"host={orders.router.host} port={orders.router.pg_port} dbname=app user=app"
    expected = [order.order_id for order in newest_first(orders.orders, 7)]
    with running(program, tmp_path, database) as site:
        seen, path = [], "/merchants/7/orders?size=97"
        while path:
            page = get(site, path)
            seen += numbers(page)
            path = page["next"]
        assert seen == expected
        back = get(site, get(site, get(site, "/merchants/7/orders?size=97")["next"])["previous"])
        assert numbers(back) == expected[:97]
        link = get(site, "/merchants/7/orders?size=5")["next"]
        assert "error" in get(site, link.replace("/7/", "/8/"), 400)
