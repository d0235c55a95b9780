"""Who comes in to the PostgreSQL listener: passwords, certificates, TLS, limits; as drivers see it (libpq)."""

import signal
import socket
import subprocess
import time

import psycopg
import pytest

from support import pgwire
from support.cluster import Cluster
from support.pgclient import LoginRefused, PgClient
from support.placement import keys_on
from support.wait import wait_until

S0 = keys_on("s0", 2)
PASSWORD = "correct horse"
ROLES = f"""
SET password_encryption = 'scram-sha-256';
CREATE ROLE shop_app LOGIN;
CREATE ROLE alice LOGIN PASSWORD '{PASSWORD}';
CREATE ROLE carol LOGIN PASSWORD '{PASSWORD}';
CREATE ROLE sleeper NOLOGIN PASSWORD '{PASSWORD}';
CREATE ROLE expired LOGIN PASSWORD '{PASSWORD}' VALID UNTIL '2000-01-01';
CREATE ROLE root_too LOGIN SUPERUSER PASSWORD '{PASSWORD}';
CREATE ROLE bare LOGIN;
"""
GRANTS = "GRANT SELECT, INSERT, UPDATE, DELETE ON account TO shop_app, alice, carol;"
SCRAM = {"backend": {"options": ""}, "pg": {"auth": "scram-sha-256"}}


def prepare(cluster):
    """The roles on both shards, and on the catalog if that is another instance."""
    for name, instance in cluster.instances.items():
        instance.sql(ROLES, dbname="postgres")
        if name in ("s0", "s1"):
            instance.sql(GRANTS)
    return cluster


@pytest.fixture(scope="module")
def logins(owner, new_folder, request, router_binary):
    """A cluster whose router asks the catalog for users."""
    cluster = Cluster(new_folder(request.module.__name__), owner, router_settings=SCRAM)
    try:
        prepare(cluster.start_instances().create_tables().describe()).apply()
        cluster.new_router().start()
        cluster.load_accounts()
        yield cluster
    finally:
        cluster.down()


def connect(router, user="alice", password=PASSWORD, dbname="app", **options):
    """As libpq does it, without what the environment says."""
    options = {"connect_timeout": 20, "sslmode": "disable", "gssencmode": "disable", **options}
    return psycopg.connect(host=options.pop("host", "127.0.0.1"), port=router.pg_port, user=user,
                           password=password, dbname=dbname, autocommit=True, **options)


def refusal(router, *arguments, **options):
    """What a client is told that does not come in."""
    with pytest.raises(psycopg.OperationalError) as caught:
        connect(router, *arguments, **options).close()
    return str(caught.value).partition("failed: ")[2].strip()


def wrong(user):
    return f'FATAL:  password authentication failed for user "{user}"'


def balance(connection):
    return connection.execute(f"SELECT balance FROM account WHERE account_id = {S0[0]}").fetchone()[0]


def verifier(instance, role):
    return instance.value("SELECT rolpassword FROM pg_authid WHERE rolname = %s", role)


# -- the catalog's users ---------------------------------------------------------------------------


def test_a_role_logs_in_with_its_own_password_and_works_as_itself_on_the_shards(logins):
    with connect(logins.router) as connection:
        assert balance(connection) == 1000
        assert connection.execute("SELECT current_user").fetchone() == ("alice",)


def test_every_failure_sounds_the_same(logins):
    assert refusal(logins.router, "alice", "wrong") == wrong("alice")
    assert refusal(logins.router, "alice", "") != ""
    for user in ("nobody", "sleeper", "expired", "root_too", "bare", "postgres", "pg_monitor", "a" * 63):
        assert refusal(logins.router, user) == wrong(user)
    code = None
    try:
        PgClient(logins.router.pg_port, "nobody", "app", password="x")
    except LoginRefused as refused:
        code = refused.code
    assert code == "28P01"


def test_a_name_that_is_no_utf8_is_nobody(logins):
    # Asked for a password like everybody; the catalog, to which it could not even be named, is not.
    client = PgClient(logins.router.pg_port, login=False)
    client.send(pgwire.startup({"user": b"\xff\xfe", "database": "app"}))
    assert client.receive().kind == "R"
    client.close()


def test_a_client_user_need_not_be_a_role_and_may_be_another_one_on_the_shards(logins):
    catalog = logins.catalog
    catalog.sql("SELECT interlock.add_client('web', %s, 'shop_app')", verifier(catalog, "alice"))
    with connect(logins.router, "web") as connection:
        assert balance(connection) == 1000
        assert connection.execute("SELECT current_user").fetchone() == ("shop_app",)
    assert refusal(logins.router, "web", "wrong") == wrong("web")
    # A role that keeps its password and only works as another one.
    catalog.sql("SELECT interlock.add_client('carol', backend_login => 'shop_app')")
    with connect(logins.router, "carol") as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("shop_app",)
    catalog.sql("SELECT interlock.remove_client('web')")
    wait_until(lambda: not comes_in(logins.router, "web"), 20, "the router forgets a user that was removed")


def comes_in(router, *arguments, **options):
    try:
        connect(router, *arguments, **options).close()
    except psycopg.OperationalError:
        return False
    return True


def test_a_changed_password_counts_within_seconds(logins):
    catalog = logins.catalog
    assert comes_in(logins.router, "carol")
    catalog.sql("ALTER ROLE carol PASSWORD 'another'")
    wait_until(lambda: comes_in(logins.router, "carol", "another"), 20, "the new password is known")
    assert refusal(logins.router, "carol") == wrong("carol")
    catalog.sql(f"ALTER ROLE carol PASSWORD '{PASSWORD}'")
    wait_until(lambda: comes_in(logins.router, "carol"), 20, "the old one is back")


def test_passwords_and_verifiers_do_not_get_into_the_log(logins):
    comes_in(logins.router)
    comes_in(logins.router, "alice", "wrong-password")
    text = logins.router.log_text()
    assert 'password authentication failed for user "alice"' in text and "the password is wrong" in text
    for secret in (PASSWORD, "wrong-password", "SCRAM-SHA-256$", verifier(logins.catalog, "alice")[-20:]):
        assert secret not in text


# -- the catalog away ------------------------------------------------------------------------------


def test_when_the_catalog_is_away_known_users_go_on_and_others_are_told_why(make_cluster):
    cluster = make_cluster(separate_catalog=True, router_settings={**SCRAM, "catalog": {"timeout": "1s"}})
    prepare(cluster.start_instances().create_tables().describe()).apply()
    router = cluster.new_router().start()
    cluster.load_accounts()
    assert comes_in(router)
    cluster.catalog.stop("immediate")
    wait_until(lambda: router.status().catalog == "down", 20, "the router notices")
    time.sleep(5.1)  # longer than what was said of a user holds by itself: here the passing of time is the matter
    with connect(router) as connection:
        assert balance(connection) == 1000
    assert refusal(router, "alice", "wrong") == wrong("alice")
    assert refusal(router, "carol").splitlines()[0] == "FATAL:  users cannot be looked up at present"
    cluster.catalog.start()
    wait_until(lambda: comes_in(router, "carol"), 20, "the catalog is asked again")


# -- a file of users -------------------------------------------------------------------------------


def test_a_file_of_users_is_enough_and_read_again_on_sighup(logins):
    users = logins.base / "users.txt"
    secret = verifier(logins.catalog, "alice")
    users.write_text(f'; users\n"filed" "{secret}" "shop_app"\n')
    router = logins.new_router("filed", {"pg": {"auth_file": users}}).start()
    with connect(router, "filed") as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("shop_app",)
    assert refusal(router, "alice") == wrong("alice")

    users.write_text(f'"alice" "{secret}"\n')
    router.send(signal.SIGHUP)
    wait_until(lambda: comes_in(router, "alice"), 10, "the file is read again")
    assert refusal(router, "filed") == wrong("filed")

    mark = router.log_mark()
    users.write_text(f'"alice" "{secret}"\n"eve" "md5secret"\n')
    router.send(signal.SIGHUP)
    wait_until(lambda: "users.txt:2: " in router.log_since(mark), 10, "the line is named")
    assert "md5secret" not in router.log_text()
    assert comes_in(router, "alice")


@pytest.mark.parametrize("settings, words", [
    ({"auth_file": "/nonexistent/users"}, 'could not read file of users "/nonexistent/users"'),
    ({"tls": "allow"}, "needs pg.tls_cert_file and pg.tls_key_file"),
    ({"auth": "cert"}, "pg.auth = cert needs TLS"),
])
def test_a_router_with_rules_that_cannot_be_kept_does_not_start(logins, settings, words):
    router = logins.new_router("unstarted", {"pg": settings}).launch()
    router.expected_end = True
    assert router.process.wait(20) == 1
    assert words in router.log_text()


# -- TLS -------------------------------------------------------------------------------------------


class Authority:
    """Makes certificates with openssl, as an administrator would."""

    def __init__(self, folder):
        self.folder = folder
        self.openssl("req", "-new", "-x509", "-nodes", "-days", "2", "-newkey", "rsa:2048", "-subj", "/CN=authority",
                     "-keyout", "ca.key", "-out", "ca.crt")

    def openssl(self, *arguments):
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)

    def issue(self, name, common_name):
        extension = self.folder / f"{name}.ext"
        extension.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        self.openssl("req", "-new", "-nodes", "-newkey", "rsa:2048", "-subj", f"/CN={common_name}",
                     "-keyout", f"{name}.key", "-out", f"{name}.csr")
        self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                     "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.crt")
        (self.folder / f"{name}.key").chmod(0o600)
        return self.folder / f"{name}.crt", self.folder / f"{name}.key"


@pytest.fixture(scope="module")
def authority(logins):
    folder = logins.base / "certificates"
    folder.mkdir()
    return Authority(folder)


@pytest.fixture(scope="module")
def tls_router(logins, authority):
    certificate, key = authority.issue("server", "localhost")
    settings = {"tls": "require", "tls_cert_file": certificate, "tls_key_file": key}
    return logins.new_router("tls", {"pg": settings}).start()


def test_libpq_verifies_the_listener_and_binds_the_password_to_the_channel(tls_router, authority):
    for channel_binding in ("require", "prefer", "disable"):
        with connect(tls_router, sslmode="verify-full", sslrootcert=authority.folder / "ca.crt", host="localhost",
                     channel_binding=channel_binding) as connection:
            assert balance(connection) == 1000
            # An answer of many TLS records, and a statement of as many.
            long = "\u00fc" * 100_000
            connection.execute("UPDATE account SET owner = %s WHERE account_id = %s", (long, S0[1]))
            assert connection.execute(f"SELECT owner FROM account WHERE account_id = {S0[1]}").fetchone() == (long,)
    assert refusal(tls_router, "alice", "wrong", sslmode="require", channel_binding="require") == wrong("alice")
    assert refusal(tls_router).splitlines()[0] == "FATAL:  connections without TLS are not accepted"
    # allow: without TLS first, then with it.
    assert comes_in(tls_router, sslmode="allow")


def test_versions_before_1_2_are_not_spoken(tls_router):
    with pytest.raises(psycopg.OperationalError):
        connect(tls_router, sslmode="require", ssl_max_protocol_version="TLSv1.1", ssl_min_protocol_version="TLSv1")
    assert comes_in(tls_router, sslmode="require", ssl_max_protocol_version="TLSv1.2")


def test_a_new_certificate_is_taken_on_sighup_and_a_bad_one_is_not(tls_router, authority):
    options = {"sslmode": "verify-full", "sslrootcert": authority.folder / "ca.crt", "host": "localhost"}
    assert comes_in(tls_router, **options)
    kept = connect(tls_router, **options)
    authority.issue("server", "elsewhere")
    (authority.folder / "server.key").chmod(0o644)
    mark = tls_router.log_mark()
    tls_router.send(signal.SIGHUP)
    wait_until(lambda: "group or world access" in tls_router.log_since(mark), 10, "the key's mode is complained about")
    assert served_name(tls_router) == "localhost"
    (authority.folder / "server.key").chmod(0o600)
    tls_router.send(signal.SIGHUP)
    wait_until(lambda: served_name(tls_router) == "elsewhere", 10, "the new certificate is shown")
    assert balance(kept) == 1000
    kept.close()


def served_name(router):
    """The common name in the certificate that the listener shows."""
    shown = subprocess.run(["openssl", "s_client", "-starttls", "postgres", "-connect", f"127.0.0.1:{router.pg_port}"],
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False).stdout
    return next((line.rpartition("=")[2].strip() for line in shown.splitlines() if line.startswith("subject=")), None)


def test_a_certificate_is_as_good_as_a_password_where_it_is_asked_for(logins, authority):
    certificate, key = authority.issue("cert_server", "localhost")
    alice = authority.issue("alice", "alice")
    router = logins.new_router("cert", {"pg": {
        "auth": "cert", "tls": "allow", "tls_cert_file": certificate, "tls_key_file": key,
        "tls_ca_file": authority.folder / "ca.crt"}}).start()
    shown = {"sslmode": "require", "sslcert": alice[0], "sslkey": alice[1]}
    with connect(router, password=None, **shown) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("alice",)
    failed = 'FATAL:  certificate authentication failed for user "{}"'
    assert refusal(router, "carol", **shown) == failed.format("carol")
    needs = "FATAL:  connection requires a valid client certificate"
    assert refusal(router, sslmode="require") == needs
    assert refusal(router) == needs
    nobody = authority.issue("nobody", "nobody")
    assert refusal(router, "nobody", sslmode="require", sslcert=nobody[0],
                   sslkey=nobody[1]) == failed.format("nobody")


# -- limits ----------------------------------------------------------------------------------------


def test_one_client_too_many_is_told_so_and_the_next_comes_in_when_one_leaves(logins):
    router = logins.new_router("small", {"pg": {"max_clients": 2}}).start()
    first, second = connect(router), connect(router)
    assert refusal(router) == "FATAL:  sorry, too many clients already"
    assert balance(first) == 1000
    second.close()
    wait_until(lambda: comes_in(router), 10, "the place is free")
    # Nor does a client that cannot prove who it is take a place for good.
    wait_until(lambda: refusal(router, "alice", "wrong") == wrong("alice"), 10, "the place is free again")
    wait_until(lambda: comes_in(router), 10, "and once more")
    first.close()


def test_who_does_not_log_in_in_time_is_dropped(logins):
    router = logins.new_router("hasty", {"pg": {"login_timeout": "200ms"}}).start()
    with socket.create_connection(("127.0.0.1", router.pg_port), timeout=10) as silent:
        assert silent.recv(1) == b""
    client = PgClient(router.pg_port, "alice", "app", login=False)
    client.send(pgwire.startup({"user": "alice", "database": "app"}))
    kinds = [message.kind for message in client.until_closed()]
    assert kinds == ["R", "E"]
    client.close()
    with connect(router) as connection:
        time.sleep(0.4)  # the limit is for logging in only
        assert balance(connection) == 1000


def test_the_databases_name(logins):
    router = logins.new_router("named", {"pg": {"database": "shop"}}).start()
    with connect(router, dbname="shop") as connection:
        assert balance(connection) == 1000
    assert refusal(router, dbname="app") == 'FATAL:  database "app" does not exist'
    assert refusal(logins.router, dbname="interlock").splitlines()[0] == 'FATAL:  database "interlock" does not exist'
    # Who does not come in does not learn which there are.
    assert refusal(router, "alice", "wrong", dbname="app") == wrong("alice")


# -- a declared function ---------------------------------------------------------------------------


def test_a_function_may_be_called_once_it_is_declared_and_published(logins):
    for instance in (logins.s0, logins.s1):
        instance.sql("CREATE FUNCTION doubled(v bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 2 * v'")
    statement = f"SELECT doubled(balance) FROM account WHERE account_id = {S0[0]}"
    with connect(logins.router) as connection:
        with pytest.raises(psycopg.Error):
            connection.execute(statement)
        logins.catalog.sql("SELECT interlock.declare_function('doubled')")
        logins.apply()

        def called():
            try:
                return connection.execute(statement).fetchone() == (2000,)
            except psycopg.Error:
                return False
        wait_until(called, 10, "the router knows of the function")
