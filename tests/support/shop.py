"""A small shop (accounts, orders, order items) on one plain server and on the sharded cluster.

Drivers and differential tests ask both the same: what a client sees on the plain server is what it must
see through the router.
"""

import base64
import hashlib
import hmac
import subprocess
from dataclasses import dataclass
from pathlib import Path

from . import placement
from .cluster import Cluster
from .postgres import Postgres

USER, PASSWORD = "app", "shop secret: 100%"
TABLES = """
CREATE TABLE account (
    account_id bigint PRIMARY KEY,
    name text NOT NULL,
    balance numeric(14,2) NOT NULL DEFAULT 0 CONSTRAINT account_not_overdrawn CHECK (balance >= 0),
    opened date NOT NULL DEFAULT '2024-01-01',
    settings jsonb,
    tags text[] NOT NULL DEFAULT '{}',
    picture bytea);
CREATE TABLE orders (
    account_id bigint NOT NULL REFERENCES account,
    order_id bigint NOT NULL,
    status text NOT NULL DEFAULT 'new',
    placed_at timestamptz NOT NULL DEFAULT '2024-05-01 12:00+00',
    note text,
    PRIMARY KEY (account_id, order_id));
CREATE TABLE order_items (
    account_id bigint NOT NULL,
    order_id bigint NOT NULL,
    line integer NOT NULL,
    sku text NOT NULL,
    quantity integer NOT NULL CHECK (quantity > 0),
    price numeric(12,2) NOT NULL,
    PRIMARY KEY (account_id, order_id, line),
    CONSTRAINT item_of_order FOREIGN KEY (account_id, order_id) REFERENCES orders
        DEFERRABLE INITIALLY DEFERRED);
GRANT SELECT, INSERT, UPDATE, DELETE ON account, orders, order_items TO app;
"""
NAMES = ("account", "orders", "order_items")
KEYS = {shard: placement.keys_on(shard, 50) for shard in ("s0", "s1")}
# Each account has orders K01, K02 and K03 for account K, and each order two lines.
ROWS = """
INSERT INTO account (account_id, name, balance, tags)
    SELECT k, 'name' || k, 1000, ARRAY['a', 'b'] FROM unnest(%(keys)s::bigint[]) k;
INSERT INTO orders (account_id, order_id, note)
    SELECT k, k * 100 + n, 'note ' || n FROM unnest(%(keys)s::bigint[]) k, generate_series(1, 3) n;
INSERT INTO order_items
    SELECT k, k * 100 + n, l, 'sku' || l, l, l * 2.50
    FROM unnest(%(keys)s::bigint[]) k, generate_series(1, 3) n, generate_series(1, 2) l;
"""


@dataclass
class Address:
    """How a client gets in."""
    host: str
    port: int
    dbname: str = "app"
    user: str = USER
    password: str = PASSWORD
    root_certificate: Path | None = None

    def environment(self):
        """libpq's variables; the programs of other drivers read the same."""
        return {"PGHOST": self.host, "PGPORT": str(self.port), "PGDATABASE": self.dbname, "PGUSER": self.user,
                "PGPASSWORD": self.password, "PGSSLROOTCERT": str(self.root_certificate or "")}


def make_certificate(folder: Path):
    """A self-signed certificate for 127.0.0.1: (certificate, key)."""
    certificate, key = folder / "server.crt", folder / "server.key"
    subprocess.run(["openssl", "req", "-new", "-x509", "-nodes", "-days", "2", "-newkey", "rsa:2048",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
                    "-keyout", key, "-out", certificate], check=True, capture_output=True)
    key.chmod(0o600)
    return certificate, key


def scram_verifier(password, salt=b"sixteen bytes of", iterations=4096):
    """What PostgreSQL keeps in pg_authid for this (ASCII) password."""
    def encoded(data):
        return base64.b64encode(data).decode()

    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    return f"SCRAM-SHA-256${iterations}:{encoded(salt)}${encoded(stored)}:{encoded(server)}"


def fill(instance, keys):
    """Replaces what the tables hold, as the superuser and directly."""
    with instance.connect() as connection, connection.transaction():
        connection.execute("SET LOCAL lock_timeout = '20s'")
        for name in reversed(NAMES):
            connection.execute(f"DELETE FROM {name}")
        for statement in ROWS.strip().split(";\n"):
            connection.execute(statement.rstrip(";"), {"keys": keys})


class DirectShop:
    """The control: one PostgreSQL server that holds all accounts, with TLS and SCRAM."""

    def __init__(self, base: Path, owner):
        self.instance = Postgres(base, "plain", owner)
        certificate, key = make_certificate(base)
        inside = {"server.crt": certificate, "server.key": key}
        for name, file in inside.items():
            (self.instance.data / name).write_bytes(file.read_bytes())
            (self.instance.data / name).chmod(0o600)
            owner.own(self.instance.data / name)
        self.instance.configure({**self.instance.settings, "ssl": "on"})
        (self.instance.data / "pg_hba.conf").write_text(
            "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
        self.address = Address("127.0.0.1", self.instance.port, root_certificate=certificate)

    def up(self):
        self.instance.start()
        self.instance.sql(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'", dbname="postgres")
        self.instance.sql("CREATE DATABASE app", dbname="postgres")
        self.instance.sql(TABLES)
        return self

    def fill(self):
        fill(self.instance, KEYS["s0"] + KEYS["s1"])

    def shard(self, name):
        """The instance where the accounts of shard `name` are."""
        return self.instance

    def check_logs(self):
        self.instance.check_log()

    def down(self):
        self.instance.stop("immediate")
        self.instance.check_log()


class RoutedShop(Cluster):
    """The same tables on two shards behind a router with a PostgreSQL listener, TLS and SCRAM."""

    def __init__(self, base: Path, owner, **options):
        certificate, key = make_certificate(base)
        users = base / "users"
        users.write_text(f'"{USER}" "{scram_verifier(PASSWORD)}"\n')
        users.chmod(0o600)
        settings = {"pg": {"auth": "scram-sha-256", "auth_file": users, "tls": "allow", "tls_cert_file": certificate, "tls_key_file": key,
                           "database": "app"}}
        super().__init__(base, owner, table=TABLES, router_settings=settings, **options)
        self.certificate = certificate

    def create_tables(self):
        """As on shards that were not made in one go: the tables' OIDs differ."""
        self.s1.sql("CREATE TABLE early (a int); DROP TABLE early")
        return super().create_tables()

    def declare(self, catalog):
        for name in NAMES:
            catalog.execute("SELECT interlock.declare_table(%s, 'accounts', 'account_id')", (name,))

    @property
    def address(self):
        return Address(self.router.host, self.router.pg_port, root_certificate=self.certificate)

    def fill(self):
        if self.router.process.poll() is not None:
            self.router.start()
        for shard, keys in KEYS.items():
            fill(self.instances[shard], keys)

    def shard(self, name):
        return self.instances[name]


class Shops:
    """`shops(way)` is the shop "direct" or "router", started when first asked for."""

    def __init__(self, owner, folder_of):
        self.owner, self.folder_of, self.running = owner, folder_of, {}

    def __call__(self, way):
        if way not in self.running:
            kind = {"direct": DirectShop, "router": RoutedShop}[way]
            shop = self.running[way] = kind(self.folder_of(way), self.owner)
            shop.up()
        return self.running[way]

    def down(self):
        for shop in self.running.values():
            shop.down()
