"""Fixtures of the multi-instance tests. INTERLOCK_BIN names the router to test (build/interlock)."""

import hashlib
import os
import re
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

import support  # noqa: F401  (puts scripts/ on the path)
from localcluster import ports
from localcluster.owner import instance_owner
from support import template
from support.cluster import Cluster
from support.drivers import Drivers
from support.indexed import IndexedCluster
from support.movable import MovableCluster
from support.move_case import MoveCase
from support.moving import MovingCluster
from support.order_cluster import OrdersCluster
from support.outbox import Outbox
from support.postgres import Postgres
from support.router import BINARY
from support.shop import Shops


def pytest_configure(config):
    # Two thousand clients take that many files, here and in the router.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # Run by several processes at a time (pytest-xdist), each hands out ports of its own.
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker.startswith("gw"):
        ports.use_part(int(worker[2:]), int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))


def remove(folder):
    """An instance is a thousand files: rm is many times faster at it than Python."""
    subprocess.run(["rm", "-rf", folder], check=False)


@pytest.fixture(scope="session")
def owner():
    """The user that instances run as."""
    return instance_owner()


def roomy_place():
    """Memory where there is plenty of it (a test's data is gone in a minute), else /tmp."""
    try:
        if shutil.disk_usage("/dev/shm").free >= 4 << 30:
            return "/dev/shm"
    except OSError:
        pass
    return "/tmp"


@pytest.fixture(scope="session")
def session_folder(owner):
    """A folder outside the checkout that the instances' user can reach; removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="interlock-tests-", dir=roomy_place()))
    folder.chmod(0o755)
    owner.own(folder)
    template.use_folder(folder)
    yield folder
    remove(folder)


@pytest.fixture(scope="session")
def new_folder(owner, session_folder):
    """A function that makes a fresh sub-folder."""
    made = []

    def make(label):
        plain = re.sub(r"\W+", "-", label)[:60]
        folder = session_folder / f"{len(made):03d}-{plain}"
        folder.mkdir()
        owner.own(folder)
        made.append(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def router_binary():
    if not BINARY.exists():
        pytest.fail(f"there is no router at {BINARY}: run `make` first", pytrace=False)
    return BINARY


@pytest.fixture(scope="module")
def module_cluster(owner, new_folder, request, router_binary):
    """The reference cluster, up once a module. A module may set CLUSTER_OPTIONS (see Cluster)."""
    options = getattr(request.module, "CLUSTER_OPTIONS", {})
    cluster = Cluster(new_folder(request.module.__name__), owner, **options)
    try:
        yield cluster.up()
    finally:
        cluster.down()
        remove(cluster.base)


@pytest.fixture
def cluster(module_cluster):
    """The module's cluster with 20 accounts of balance 1000 on each shard."""
    if module_cluster.router.process.poll() is not None:
        # It fell over in an earlier test, which failed for it; this one shall be judged by itself.
        module_cluster.router.start()
    module_cluster.load_accounts()
    yield module_cluster
    module_cluster.end_test()


def kept_up(cluster):
    """The cluster, up; what a fixture yields that many tests share."""
    try:
        yield cluster.up()
    finally:
        cluster.down()
        remove(cluster.base)


def lent(cluster):
    """It for one test, with a router that runs."""
    if cluster.router.process.poll() is not None:
        cluster.router.start()
    yield cluster
    cluster.end_test()


@pytest.fixture(scope="session")
def session_orders(owner, new_folder, router_binary):
    """Three shards with the orders of support/orders.py, up once for all tests that only read them."""
    yield from kept_up(OrdersCluster(new_folder("orders"), owner))


@pytest.fixture
def orders(session_orders):
    """That cluster. A test that changes rows takes `changed_orders`."""
    yield from lent(session_orders)


@pytest.fixture
def changed_orders(orders):
    """As `orders`; the rows are put back afterwards."""
    yield orders
    for item in [*orders.clients, *orders.connections]:
        item.close()
    orders.load()


@pytest.fixture(scope="session")
def session_indexed(owner, new_folder, router_binary):
    """Three shards with the orders and a global index of them, up once for all tests; each puts back what it changed."""
    yield from kept_up(IndexedCluster(new_folder("indexed"), owner))


@pytest.fixture
def indexed(session_indexed):
    """That cluster. A test that changes rows takes `changed_indexed`."""
    yield from lent(session_indexed)


@pytest.fixture
def changed_indexed(indexed):
    """As `indexed`; rows, index and owners of buckets are put back afterwards."""
    yield indexed
    indexed.end_test()
    indexed.restore()


@pytest.fixture(scope="session")
def session_movable(owner, new_folder, router_binary):
    """A function that gives two shards for tests that move buckets, the same for all of them (each makes tables and a
    keyspace of its own), or new ones when asked for."""
    kept = []

    def give(new=False):
        if new and kept:
            down(kept.pop())
        if not kept:
            kept.append(MovableCluster(new_folder("movable"), owner))
            kept[0].up()
        return kept[0]

    def down(cluster):
        cluster.down()
        remove(cluster.base)

    yield give
    if kept:
        down(kept.pop())


@pytest.fixture
def movable(session_movable):
    """That cluster, with no move under way."""
    cluster = session_movable()
    if cluster.router.process.poll() is not None or cluster.leftovers():
        cluster = session_movable(new=True)
    yield cluster
    try:
        cluster.end_test()
    finally:
        if not cluster.restore():
            session_movable(new=True)


@pytest.fixture
def make_cluster(owner, new_folder, request, router_binary):
    """A function that gives the test a cluster of its own: make_cluster(**options).up()."""
    yield from makes(lambda **options: Cluster(new_folder(request.node.name[:60]), owner, **options))


def makes(kind):
    """A function that makes clusters; all go down at the end."""
    made = []

    def make(**options):
        made.append(kind(**options))
        return made[-1]

    yield make
    faults = []
    for cluster in made:
        for step in (cluster.end_test, cluster.down):
            try:
                step()
            except AssertionError as fault:
                faults.append(str(fault))
        remove(cluster.base)
    assert not faults, "\n".join(faults)


@pytest.fixture(scope="module")
def module_moving(owner, new_folder, request, router_binary):
    """A cluster whose buckets are moved (support/moving.py), up once a module."""
    yield from kept_up(MovingCluster(new_folder(request.module.__name__), owner, **getattr(request.module, "CLUSTER_OPTIONS", {})))


@pytest.fixture
def moving(module_moving):
    """That cluster; moves are ended and buckets brought back afterwards."""
    yield from lent(module_moving)
    module_moving.restore()


@pytest.fixture
def move_case(module_moving):
    """A move of one bucket under load on that cluster. It stays where a test has moved it, unless the test failed."""
    catalog = module_moving.catalog
    if catalog.process.poll() is not None or catalog.value("SELECT count(*) FROM interlock.moves WHERE finished IS NULL"):
        module_moving.restore()
    for cluster in lent(module_moving):
        with MoveCase(cluster) as case:
            yield case


@pytest.fixture
def make_moving(owner, new_folder, request, router_binary):
    """A function that makes such a cluster for the test alone: make_moving(**options).up()."""
    yield from makes(lambda **options: MovingCluster(new_folder(request.node.name[:60]), owner, **options))


@pytest.fixture
def make_instance(owner, new_folder, request):
    """A function that starts a PostgreSQL instance of the test's own, with a database `app`."""
    made = []

    def make(name="pg", settings=None, extension=True):
        instance = Postgres(new_folder(f"{request.node.name[:50]}-{name}"), name, owner, settings).start()
        made.append(instance)
        instance.sql("CREATE ROLE app LOGIN; CREATE ROLE interlock_router LOGIN;", dbname="postgres")
        instance.sql("CREATE DATABASE app", dbname="postgres")
        if extension:
            instance.sql("CREATE EXTENSION interlock")
        return instance

    yield make
    for instance in made:
        instance.stop("immediate")
        instance.check_log()


@pytest.fixture(scope="module")
def instance(owner, new_folder, request):
    """One instance for the module, with the extension in database `app`."""
    server = Postgres(new_folder(request.module.__name__), "pg", owner).start()
    try:
        server.sql("CREATE ROLE app LOGIN; CREATE ROLE interlock_router LOGIN;", dbname="postgres")
        server.sql("CREATE DATABASE app", dbname="postgres")
        server.sql("CREATE EXTENSION interlock")
        yield server
    finally:
        server.stop("immediate")
        server.check_log()


@pytest.fixture
def outbox(instance, request):
    """A database of the test's own, in the module's instance, with the extension."""
    name = "outbox_" + hashlib.sha1(request.node.name.encode()).hexdigest()[:12]
    database = Outbox(instance, name).create()
    yield database
    database.drop()
    instance.check_log()


@pytest.fixture(scope="module")
def drivers(owner, new_folder, request):
    """Runs driver programs on a plain server and through a router (see support/drivers.py)."""
    shops = Shops(owner, lambda way: new_folder(f"{request.module.__name__}-{way}"))
    try:
        yield Drivers(shops)
    finally:
        shops.down()
