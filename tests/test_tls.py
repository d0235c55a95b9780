"""A shard that only takes TLS connections is served like any other."""

import subprocess

import pytest

from support.placement import keys_on
from support.statements import BALANCE, CREDIT, DEBIT, ok, refused

S0, S1 = keys_on("s0", 2), keys_on("s1", 2)


def tls_only(instance):
    """Turns the (running) instance into one that takes nothing but TLS, with a certificate of its own."""
    key, certificate = instance.data / "server.key", instance.data / "server.crt"
    subprocess.run(["openssl", "req", "-new", "-x509", "-nodes", "-days", "2", "-newkey", "rsa:2048",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
                    "-keyout", key, "-out", certificate], check=True, capture_output=True)
    key.chmod(0o600)
    for file in (key, certificate):
        instance.owner.own(file)
    instance.configure({**instance.settings, "ssl": "on"})
    (instance.data / "pg_hba.conf").write_text(
        "hostssl all all 127.0.0.1/32 trust\nhostnossl all all 127.0.0.1/32 reject\n")
    instance.restart()
    return certificate


@pytest.fixture
def tls_cluster(make_cluster):
    cluster = make_cluster().start_instances().create_tables()
    certificate = tls_only(cluster.s1)
    # libpq reads it as the router's user, which need not be the instance's.
    root = cluster.base / "root.crt"
    root.write_bytes(certificate.read_bytes())
    cluster.root_certificate = root
    return cluster


@pytest.mark.parametrize("mode", ["require", "verify-full"])
def test_a_tls_shard_takes_reads_writes_and_transactions(tls_cluster, mode):
    cluster = tls_cluster
    extra = f" sslmode={mode}" + (f" sslrootcert={cluster.root_certificate}" if mode == "verify-full" else "")
    cluster.conninfo_of = lambda name, instance: instance.conninfo("app") + (extra if name == "s1" else "")
    cluster.describe().apply()
    cluster.load_accounts()
    cluster.new_router().start()
    client = cluster.client()
    answer = ok(client.q(BALANCE, S1[0]))
    assert answer.rows == [[1000]]
    assert cluster.s1.value("SELECT ssl FROM pg_stat_ssl WHERE pid = %s", answer.pid) is True
    ok(client.q("BEGIN"))
    ok(client.q(DEBIT, 10, S1[0]))
    ok(client.q(CREDIT, 10, S1[1]))
    ok(client.q("COMMIT"))
    assert cluster.balance(S1[1]) == 1010
    # An answer of many TLS records, both ways.
    long = "\u00fc" * 100_000
    assert ok(client.q("UPDATE account SET owner = ? WHERE account_id = ?", long, S1[0])).count == 1
    assert ok(client.q("SELECT owner FROM account WHERE account_id = ?", S1[0])).rows == [[long]]
    assert ok(client.q(BALANCE, S0[0])).rows == [[1000]]


def test_a_tls_shard_reached_without_tls_is_unavailable_and_the_other_serves(tls_cluster):
    cluster = tls_cluster
    cluster.describe()
    catalog = cluster.catalog
    catalog.sql("SELECT interlock.set_shard_conninfo('s1', %s)", cluster.s1.conninfo("app") + " sslmode=require")
    cluster.apply()
    cluster.load_accounts()
    catalog.sql("SELECT interlock.set_shard_conninfo('s1', %s)", cluster.s1.conninfo("app") + " sslmode=disable")
    catalog.sql("SELECT interlock.publish()")
    cluster.new_router().start()
    client = cluster.client()
    refused(client.q(BALANCE, S1[0]), "R30", "I")
    assert ok(client.q(BALANCE, S0[0])).rows == [[1000]]


def test_a_tls_shard_that_crashes_and_restarts_is_served_again(tls_cluster):
    cluster = tls_cluster
    cluster.conninfo_of = lambda name, instance: instance.conninfo("app") + (
        " sslmode=require" if name == "s1" else "")
    cluster.describe().apply()
    cluster.load_accounts()
    cluster.new_router().start()
    client = cluster.client()
    ok(client.q(BALANCE, S1[0]))
    cluster.s1.kill()
    refused(client.q(BALANCE, S1[0]), "R30", "I")
    cluster.s1.start()
    assert ok(client.q(CREDIT, 1, S1[0])).count == 1
