"""psql and pgbench on a plain server and through the router: the same words, the same exit status."""

import os
import re
import signal
import subprocess

import pytest

from localcluster.instance import bindir
from support.router import SLACK
from support.shop import KEYS
from support.wait import wait_until

BIN = bindir()
WAYS = ["direct", "router"]
K = KEYS["s0"][0]
L = KEYS["s1"][0]


@pytest.fixture(params=WAYS)
def way(request):
    return request.param


@pytest.fixture
def shop(drivers, way):
    shop = drivers.shop_of(way)
    shop.fill()
    return shop


def environment(shop, extra=None):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_", "LANG"))}
    return {**kept, **shop.address.environment(), "LC_ALL": "C.UTF-8", "PSQL_HISTORY": "/dev/null", **(extra or {})}


def run(shop, program, *arguments, input=None, extra=None):
    return subprocess.run([BIN / program, *map(str, arguments)], env=environment(shop, extra), cwd="/",
                          input=input, stdin=subprocess.DEVNULL if input is None else None, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60 * SLACK)


def psql(shop, *arguments, **options):
    return run(shop, "psql", "-X", *arguments, **options)


# What the router says instead of PostgreSQL bears its code, and at times a hint.
CODE = re.compile(r"(?<=ERROR:  )R\d\d: ")
HINT = "HINT:  Send ROLLBACK.\n"
# Each: the script (on standard input) or arguments, the exit status, and a word of the output.
SCRIPTS = {
    "a query": (f"SELECT name, balance FROM account WHERE account_id = {K};", 0, "1000.00"),
    "several statements in a line": (f"SELECT 1; SELECT balance FROM account WHERE account_id = {K}; SELECT 2;", 0, "2"),
    "a write and its tag": (f"UPDATE account SET name = 'x' WHERE account_id = {K} RETURNING name;\n"
                            f"DELETE FROM order_items WHERE account_id = {K};", 0, "DELETE 6"),
    "a transaction": (f"BEGIN;\nUPDATE account SET balance = 5 WHERE account_id = {K};\nSAVEPOINT a;\n"
                      f"UPDATE account SET balance = -5 WHERE account_id = {K};\nROLLBACK TO a;\nCOMMIT;\n"
                      f"SELECT balance FROM account WHERE account_id = {K};", 0, "5.00"),
    "a failed transaction": (f"BEGIN;\nUPDATE account SET balance = -5 WHERE account_id = {K};\n"
                             f"SELECT balance FROM account WHERE account_id = {K};\nCOMMIT;", 0, "ROLLBACK"),
    "warnings": ("COMMIT;\nBEGIN;\nBEGIN;\nROLLBACK;\nROLLBACK;", 0, "already a transaction"),
    "a stop at the first error": (f"\\set ON_ERROR_STOP on\nSELECT 1/0 FROM account WHERE account_id = {K};\n"
                                  "SELECT 'not reached';", 3, "division by zero"),
    "going on after an error": (f"SELECT 1/0 FROM account WHERE account_id = {K};\nSELECT 'reached';", 0, "reached"),
    "the position of an error": (f"SELECT balance\nFROM account\nWHERE account_id = {K} AND nothing = 1;", 0, "LINE 3"),
    "errverbose": (f"SELECT nothing FROM account WHERE account_id = {K};\n\\errverbose", 0, "42703"),
    "verbose errors": (f"\\set VERBOSITY verbose\nUPDATE account SET balance = -5 WHERE account_id = {K};", 0,
                       "CONSTRAINT NAME:  account_not_overdrawn"),
    "sqlstate variables": (f"SELECT 1/0 FROM account WHERE account_id = {K};\n\\echo :SQLSTATE :ERROR :ROW_COUNT\n"
                           f"SELECT line FROM order_items WHERE account_id = {K};\n\\echo :SQLSTATE :ROW_COUNT", 0,
                           "22012 true 0"),
    "gset": (f"SELECT balance AS b, name FROM account WHERE account_id = {K} \\gset mine_\n\\echo :mine_b :mine_name\n"
             f"SELECT balance FROM account WHERE account_id = {K} AND balance = :mine_b;", 0, "1000.00 name"),
    "gdesc": (f"SELECT name, balance, placed_at FROM account JOIN orders USING (account_id) WHERE account_id = {K} \\gdesc",
              0, "numeric"),
    "gexec": (f"SELECT format('SELECT %s + balance FROM account WHERE account_id = {K}', n) FROM generate_series(1, 2) n"
              " \\gexec", 0, "1002.00"),
    "gx and crosstab": (f"SELECT * FROM account WHERE account_id = {K} \\gx\n"
                        f"SELECT order_id, line, price FROM order_items WHERE account_id = {K} ORDER BY 1, 2 \\crosstabview",
                        0, "RECORD 1"),
    "formats": (f"\\pset format csv\nSELECT line, sku FROM order_items WHERE account_id = {K} ORDER BY order_id, line;\n"
                f"\\pset format html\nSELECT name FROM account WHERE account_id = {K};\n\\a\\t\n"
                f"SELECT name FROM account WHERE account_id = {K};", 0, "2,sku2"),
    "copy to": (f"\\copy (SELECT line, sku FROM order_items WHERE account_id = {K} ORDER BY order_id, line) TO STDOUT CSV HEADER\n"
                f"COPY (SELECT name FROM account WHERE account_id = {K}) TO STDOUT;", 0, "line,sku"),
    "rows in parts": (f"\\set FETCH_COUNT 2\nSELECT order_id, line FROM order_items WHERE account_id = {K} ORDER BY 1, 2;\n"
                      f"BEGIN; SELECT line FROM order_items WHERE account_id = {K} ORDER BY order_id, 1; COMMIT;", 0, "6 rows"),
    "rollback of the statement": (f"\\set ON_ERROR_ROLLBACK on\nBEGIN;\nUPDATE account SET balance = 7 WHERE account_id = {K};\n"
                                  f"UPDATE account SET balance = -7 WHERE account_id = {K};\n"
                                  f"SELECT balance FROM account WHERE account_id = {K};\nCOMMIT;", 0, "7.00"),
    "autocommit off": (f"\\set AUTOCOMMIT off\nUPDATE account SET balance = 7 WHERE account_id = {K};\nROLLBACK;\n"
                       f"SELECT balance FROM account WHERE account_id = {K};\nCOMMIT;", 0, "1000.00"),
    "settings": ("SET timezone = 'Asia/Tokyo';\nSHOW timezone;\nSET statement_timeout = '3s';\nSHOW statement_timeout;\n"
                 "RESET ALL;\nSHOW timezone;\nSET timezone = 'Nowhere';\nSET work_mem = '8MB';\nSHOW work_mem;\nSHOW nothing;\nDISCARD ALL;", 0, "Asia/Tokyo"),
    "the client's encoding": (f"\\encoding LATIN1\n\\encoding\nSHOW client_encoding;\n\\encoding UTF8\n"
                              f"UPDATE account SET name = 'ü☃' WHERE account_id = {K} RETURNING name, length(name);", 0, "LATIN1"),
    "connect again": (f"\\connect -reuse-previous=on\nSELECT balance FROM account WHERE account_id = {K};", 0, "You are now"),
    "conditions": (f"SELECT balance > 5 AS rich FROM account WHERE account_id = {K} \\gset\n\\if :rich\n\\echo rich\n\\else\n"
                   "\\echo poor\n\\endif", 0, "rich"),
    "variables are quoted": (f"\\set who 'it''s \"me\"'\nUPDATE account SET name = :'who' WHERE account_id = {K} RETURNING name;",
                             0, 'it\'s "me"'),
    "comments": (f"-- a comment\nSELECT /* here /* and there */ */ balance FROM account -- and here\nWHERE account_id = {K};",
                 0, "1000.00"),
    "explain": (f"EXPLAIN (COSTS OFF) SELECT * FROM account WHERE account_id = {K};", 0, "account_pkey"),
    "the other shard": (f"SELECT name, balance FROM account WHERE account_id = {L};", 0, "1000.00"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_psql_script(drivers, shop, way, name):
    script, status, word = SCRIPTS[name]
    seen = psql(shop, input=script)
    assert seen.returncode == status, seen
    assert word in seen.stdout + seen.stderr, seen
    if way == "router":
        plain = drivers.shop_of("direct")
        plain.fill()
        control = psql(plain, input=script)
        assert (seen.stdout, CODE.sub("", seen.stderr).replace(HINT, "")) == (control.stdout, control.stderr)


ARGUMENTS = {
    "several commands": (["-c", "SELECT 1", "-c", f"SELECT balance FROM account WHERE account_id = {K}"], 0, "1000.00"),
    "several statements in one command": (["-c", f"UPDATE account SET balance = 3 WHERE account_id = {K};"
                                           f" SELECT balance FROM account WHERE account_id = {K}"], 0, "3.00"),
    "a command that fails": (["-c", f"SELECT 1/0 FROM account WHERE account_id = {K}"], 1, "division by zero"),
    "several statements of which one fails": (["-c", f"UPDATE account SET balance = 3 WHERE account_id = {K};"
                                               f" UPDATE account SET balance = -3 WHERE account_id = {K}", "-c",
                                               f"SELECT balance FROM account WHERE account_id = {K}"], 0, "1000.00"),
    "a single transaction": (["-1", "-v", "ON_ERROR_STOP=1", "-c", f"UPDATE account SET balance = 3 WHERE account_id = {K}",
                              "-c", f"UPDATE account SET balance = -3 WHERE account_id = {K}"], 1, "account_not_overdrawn"),
    "a stop at the first error": (["-v", "ON_ERROR_STOP=1", "-c", "SELECT 1 FROM", "-c", "SELECT 2"], 1, "syntax error"),
    "csv": (["--csv", "-c", f"SELECT line, price FROM order_items WHERE account_id = {K} ORDER BY order_id, line"], 0, "2,5.00"),
    "unaligned tuples only": (["-Atc", f"SELECT name, balance FROM account WHERE account_id = {K}"], 0, f"name{K}|1000.00"),
    "echo all": (["-aq", "-c", "SELECT 1", "-c", "\\echo hello"], 0, "hello"),
    "another database": (["-d", "nothing", "-c", "SELECT 1"], 2, 'database "nothing" does not exist'),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_psql_arguments(drivers, shop, way, name):
    arguments, status, word = ARGUMENTS[name]
    seen = psql(shop, *arguments)
    assert seen.returncode == status, seen
    assert word in seen.stdout + seen.stderr, seen
    if way == "router":
        plain = drivers.shop_of("direct")
        plain.fill()
        control = psql(plain, *arguments)
        port = str(plain.address.port), str(shop.address.port)
        assert (seen.stdout, CODE.sub("", seen.stderr)) == (control.stdout, control.stderr.replace(*port))


@pytest.mark.parametrize("command", [
    "\\l", "\\l+", "\\d", "\\d+", "\\dt", "\\dt+ account", "\\d account", "\\d+ orders", "\\d order_items", "\\d account_pkey",
    "\\di", "\\df", "\\df interlock.*", "\\dn", "\\dn+", "\\du", "\\dx", "\\dT", "\\dv", "\\ds", "\\dm", "\\dp", "\\z account", "\\db",
    "\\dD", "\\dy", "\\dO", "\\ddp", "\\dRp", "\\dconfig work_mem", "\\dS+ pg_class", "\\d nothing", "\\sf interlock.bucket_of",
    "\\dA", "\\dc", "\\dC", "\\do =", "\\dL", "\\des", "\\drds", "\\dX",
])
def test_psql_describes_what_is_on_the_shards(drivers, command):
    """Everything psql asks the catalog answers as on a shard itself: any of them may be asked, and s0 has other
    privileges on the extension's schema than s1, because it is the catalog as well."""
    shop = drivers.shop_of("router")
    # A size may differ by a page between two looks.
    volatile = re.compile(r"\d+ [kM]B")

    def told(run):
        return volatile.sub("N", run.stdout), volatile.sub("N", run.stderr), run.returncode

    seen = told(psql(shop, "-c", command))
    controls = [told(subprocess.run([BIN / "psql", "-X", "-d", shop.shard(name).conninfo("app", "app"), "-c", command],
                                    env=environment(shop), cwd="/", text=True, capture_output=True, timeout=60))
                for name in ("s0", "s1")]
    assert seen in controls


def test_psql_describes_tables(shop):
    """The same on both: that there is something to describe at all."""
    listed = psql(shop, "-Atc", "\\dt").stdout
    assert [line.split("|")[1] for line in listed.splitlines()] == ["account", "order_items", "orders"], listed
    assert "account_not_overdrawn" in psql(shop, "-c", "\\d account").stdout


def test_psql_says_how_it_is_connected(shop):
    said = psql(shop, "-c", "\\conninfo").stdout
    assert f'database "app" as user "app" on host "127.0.0.1" at port "{shop.address.port}"' in said, said
    assert "SSL connection (protocol: TLSv1.3" in said, said


def test_psql_times(shop):
    seen = psql(shop, input=f"\\timing on\nSELECT balance FROM account WHERE account_id = {K};")
    assert re.search(r"1000.00.*Time: \d+\.\d+ ms", seen.stdout, re.S), seen


@pytest.mark.parametrize("words, answer", [
    ("sslmode=disable", "f"), ("sslmode=allow", None), ("sslmode=prefer", "t"), ("sslmode=require", "t"),
    ("sslmode=verify-full", "t"), ("sslmode=require ssl_min_protocol_version=TLSv1.3", "t"),
    ("gssencmode=prefer", None), ("channel_binding=prefer", None),
    ("target_session_attrs=read-write", None), ("target_session_attrs=primary", None),
    ("target_session_attrs=prefer-standby", None), ("connect_timeout=5 keepalives=1", None),
    ("application_name=mine fallback_application_name=other", None),
])
def test_psql_connection_words(shop, words, answer):
    encrypted = "TLS" if answer == "t" else "no"
    seen = psql(shop, f"host=127.0.0.1 {words}", "-At", "-c", f"SELECT balance FROM account WHERE account_id = {K}",
                "-c", "\\conninfo")
    assert seen.returncode == 0 and seen.stdout.startswith("1000.00\n"), seen
    if answer:
        assert ("SSL connection" in seen.stdout) == (encrypted == "TLS"), seen


def test_psql_options_of_the_environment(shop):
    show = ["-At", *(word for name in ("statement_timeout", "application_name", "client_encoding", "timezone", "datestyle")
                     for word in ("-c", f"SHOW {name}"))]
    seen = psql(shop, *show, extra={"PGOPTIONS": "-c statement_timeout=5s --timezone=Asia/Tokyo", "PGAPPNAME": "mine",
                                    "PGCLIENTENCODING": "LATIN1", "PGDATESTYLE": "German"})
    assert seen.stdout.split() == ["5s", "mine", "LATIN1", "Asia/Tokyo", "German,", "DMY"], seen


def test_psql_finds_the_server_among_several_hosts_and_by_uri(shop):
    port = shop.address.port
    query = ["-Atc", f"SELECT balance FROM account WHERE account_id = {K}"]
    seen = psql(shop, f"host=127.0.0.1,127.0.0.1 port=1,{port} target_session_attrs=read-write", *query)
    assert seen.stdout == "1000.00\n", seen
    seen = psql(shop, f"postgresql://app@127.0.0.1:{port}/app?sslmode=require&options=-c%20statement_timeout%3D1s", *query)
    assert seen.stdout == "1000.00\n", seen


def test_psql_finds_its_password_in_a_file(shop, tmp_path):
    passfile = tmp_path / "pgpass"
    escaped = shop.address.password.replace("\\", "\\\\").replace(":", "\\:")
    passfile.write_text(f"127.0.0.1:*:app:app:{escaped}\n")
    passfile.chmod(0o600)
    seen = psql(shop, "-w", "-Atc", "SELECT 1", extra={"PGPASSFILE": str(passfile), "PGPASSWORD": ""})
    assert seen.stdout == "1\n", seen


@pytest.mark.parametrize("words, message", [
    ("user=app password=wrong", 'password authentication failed for user "app"'),
    ("user=nobody password=x", 'password authentication failed for user "nobody"'),
    ("target_session_attrs=standby", "is not in hot standby mode"),
    ("target_session_attrs=read-only", "session is not read-only"),
])
def test_psql_is_told_why_it_cannot_connect(shop, words, message):
    seen = psql(shop, f"{words}", "-c", "SELECT 1")
    assert seen.returncode == 2 and message in seen.stderr, seen


def test_psql_is_interrupted_and_the_row_is_free(shop):
    """Ctrl-C in a running statement: it is cancelled, and the next client gets the row at once."""
    with shop.shard("s0").connect() as holder, shop.shard("s0").connect() as observer:
        holder.execute("BEGIN")
        holder.execute("UPDATE account SET balance = 1 WHERE account_id = %s", (K,))
        process = subprocess.Popen(
            [BIN / "psql", "-X", "-At", "-c", f"UPDATE account SET balance = 2 WHERE account_id = {K}"],
            env=environment(shop), cwd="/", text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE)
        wait_until(lambda: observer.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                                            ).fetchone()[0], 20 * SLACK, "the statement waits for the row")
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=30 * SLACK)
        holder.execute("ROLLBACK")
    assert process.returncode == 1 and "canceling statement due to user request" in errors, (out, errors)
    seen = psql(shop, "-At", "-c", f"UPDATE account SET name = 'goes on' WHERE account_id = {K} RETURNING name, balance")
    assert seen.stdout.startswith("goes on|1000.00\n"), seen


def test_pg_isready(shop):
    seen = run(shop, "pg_isready")
    assert seen.returncode == 0 and "accepting connections" in seen.stdout, seen


def test_psql_learns_why_the_router_refuses(drivers):
    shop = drivers.shop_of("router")
    shop.fill()
    seen = psql(shop, "-v", "VERBOSITY=verbose", "-c", f"SELECT balance FROM account WHERE account_id IN ({K}, {L})")
    assert seen.returncode == 1 and "ERROR:  IL011: R11: " in seen.stderr, seen
    seen = psql(shop, input="\\copy account FROM STDIN\n1\tx\n\\.\nSELECT 'goes on';\n")
    assert "goes on" in seen.stdout and "ERROR" in seen.stderr, seen


# -- pgbench -------------------------------------------------------------------------------------

# A thread for each client: one that waits for a connection of the pool while it prepares its statements must not
# keep another, whose transaction holds one, from going on.
TEN, FOUR = ("-c", 10, "-j", 10), ("-c", 4, "-j", 4)
READ = """\\set k random(1, 60)
SELECT balance FROM account WHERE account_id = :k;
"""
PAY = """\\set k random(1, 60)
\\set n random(1000000, 9000000000000)
BEGIN;
UPDATE account SET balance = balance - 1 WHERE account_id = :k;
SELECT balance FROM account WHERE account_id = :k;
INSERT INTO orders (account_id, order_id, note) VALUES (:k, :n, 'paid') ON CONFLICT DO NOTHING;
INSERT INTO order_items VALUES (:k, :n, 1, 'sku', 1, 1.00) ON CONFLICT DO NOTHING;
END;
"""
PIPELINED = """\\set k random(1, 60)
\\set n random(1000000, 9000000000000)
\\startpipeline
BEGIN;
UPDATE account SET balance = balance - 1 WHERE account_id = :k;
INSERT INTO orders (account_id, order_id, note) VALUES (:k, :n, 'paid') ON CONFLICT DO NOTHING;
INSERT INTO order_items VALUES (:k, :n, 1, 'sku', 1, 1.00) ON CONFLICT DO NOTHING;
END;
\\endpipeline
"""
READ_BACK = """\\set k random(1, 60)
SELECT balance AS b, name FROM account WHERE account_id = :k \\gset
\\if :b < 0
SELECT 'impossible' FROM account WHERE account_id = :k;
\\endif
SELECT balance FROM account WHERE account_id = :k AND balance <= :b;
"""
SERIALIZABLE = f"""BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT balance FROM account WHERE account_id = {K};
UPDATE account SET balance = balance - 1 WHERE account_id = {K};
INSERT INTO orders (account_id, order_id, note) VALUES ({K}, :client_id * 1000000 + (SELECT balance FROM account WHERE account_id = {K}), 'paid');
END;
"""


def pgbench(shop, folder, script, *arguments):
    """Runs the script and returns how many transactions were carried out."""
    file = folder / "script.sql"
    file.write_text(script)
    done = run(shop, "pgbench", "-n", "-f", file, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"number of failed transactions: 0 \(", done.stdout), done.stdout + done.stderr
    return int(re.search(r"number of transactions actually processed: (\d+)", done.stdout).group(1))


def paid(shop):
    """What is left of the balances and how many payments were recorded, read directly."""
    shards = {shop.shard(name) for name in ("s0", "s1")}
    return tuple(sum(shard.value(f"SELECT {what}") for shard in shards) for what in (
        "sum(1000 - balance) FROM account", "count(*) FROM orders WHERE note = 'paid'",
        "count(*) FROM order_items WHERE sku = 'sku'"))


@pytest.mark.parametrize("protocol", ["simple", "extended", "prepared"])
def test_pgbench_reads_and_transactions(shop, tmp_path, protocol):
    """More clients than the pool has connections: prepared statements meet backends that do not know them."""
    assert pgbench(shop, tmp_path, READ, "-M", protocol, *TEN, "-t", 50) == 500
    assert pgbench(shop, tmp_path, READ_BACK, "-M", protocol, *TEN, "-t", 20) == 200
    assert pgbench(shop, tmp_path, PAY, "-M", protocol, *TEN, "-t", 30) == 300
    assert paid(shop) == (300, 300, 300)


@pytest.mark.parametrize("protocol", ["extended", "prepared"])
def test_pgbench_pipelines(shop, tmp_path, protocol):
    assert pgbench(shop, tmp_path, PIPELINED, "-M", protocol, *TEN, "-t", 30) == 300
    assert paid(shop) == (300, 300, 300)


@pytest.mark.parametrize("protocol", ["simple", "prepared"])
def test_pgbench_connects_for_each_transaction(shop, tmp_path, protocol):
    assert pgbench(shop, tmp_path, PAY, "-M", protocol, "-C", *FOUR, "-t", 10) == 40
    assert paid(shop) == (40, 40, 40)


@pytest.mark.parametrize("protocol", ["simple", "prepared"])
def test_pgbench_tries_serialization_failures_again(shop, tmp_path, protocol):
    assert pgbench(shop, tmp_path, SERIALIZABLE, "-M", protocol, *FOUR, "-t", 15, "--max-tries=1000") == 60
    assert paid(shop)[:2] == (60, 60)
