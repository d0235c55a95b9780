"""SIGTERM finishes transactions, SIGINT ends now, SIGHUP reads the configuration again."""

import signal

import pytest

from support.placement import keys_on
from support.router import SLACK, run_interlock
from support.statements import BALANCE, CREDIT, DEBIT, ok
from support.wait import Stopwatch, wait_until

S0, S1 = keys_on("s0", 4), keys_on("s1", 4)


def refuses_new_clients(router):
    """A new client is told at once: not connected, closed, or an answer that is a refusal. Never left waiting."""
    try:
        with router.client(timeout=2) as client:
            return not client.q(BALANCE, S0[0]).ok
    except TimeoutError:
        raise AssertionError("a new client is neither served nor refused") from None
    except OSError:
        return True


def ends(router, deadline):
    router.expected_end = True
    return router.process.wait(deadline)


def test_sigterm_lets_a_transaction_in_progress_commit_and_then_ends(make_cluster):
    cluster = make_cluster().up()
    cluster.load_accounts()
    client, idle = cluster.client(), cluster.client()
    ok(idle.q(BALANCE, S1[0]))
    ok(client.q("BEGIN"))
    ok(client.q(DEBIT, 100, S0[0]))
    cluster.router.expected_end = True
    cluster.router.send(signal.SIGTERM)
    wait_until(lambda: refuses_new_clients(cluster.router), 10, "new clients are refused")
    assert cluster.router.process.poll() is None, "it waits for the transaction"
    ok(client.q(CREDIT, 100, S0[1]))
    ok(client.q("COMMIT"))
    assert ends(cluster.router, 5 * SLACK) == 0
    assert cluster.balance(S0[0]) == 900 and cluster.balance(S0[1]) == 1100


def test_sigterm_without_transactions_ends_at_once(make_cluster):
    cluster = make_cluster().up()
    cluster.load_accounts()
    for _ in range(5):
        ok(cluster.client().q(BALANCE, S0[0]))
    with Stopwatch() as watch:
        assert cluster.router.end(signal.SIGTERM) == 0
    assert watch.seconds < 2 * SLACK
    wait_until(lambda: cluster.s0.value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'") == 0,
               5, "its backends are gone")


def test_sigterm_waits_no_longer_than_it_is_told(make_cluster):
    cluster = make_cluster(router_settings={"limits": {"shutdown_timeout": "700ms"}}).up()
    cluster.load_accounts()
    client = cluster.client()
    ok(client.q("BEGIN"))
    ok(client.q(DEBIT, 100, S0[0]))
    cluster.router.expected_end = True
    with Stopwatch() as watch:
        cluster.router.send(signal.SIGTERM)
        status = ends(cluster.router, 10 * SLACK)
    assert status == 0 and 0.6 < watch.seconds < 3 * SLACK
    wait_until(lambda: cluster.idle_in_transaction("s0") == 0, 5, "the transaction is rolled back")
    assert cluster.balance(S0[0]) == 1000


def test_a_second_sigterm_or_sigint_ends_it_now(make_cluster):
    cluster = make_cluster().up()
    cluster.load_accounts()
    client = cluster.client()
    ok(client.q("BEGIN"))
    ok(client.q(DEBIT, 100, S0[0]))
    cluster.router.expected_end = True
    cluster.router.send(signal.SIGTERM)
    wait_until(lambda: refuses_new_clients(cluster.router), 10, "it is shutting down")
    cluster.router.send(signal.SIGINT)
    ends(cluster.router, 3 * SLACK)
    wait_until(lambda: cluster.idle_in_transaction("s0") == 0, 5, "the transaction is rolled back")
    assert cluster.balance(S0[0]) == 1000


def test_sigint_ends_now_and_the_transaction_in_progress_is_rolled_back(make_cluster):
    cluster = make_cluster().up()
    cluster.load_accounts()
    client = cluster.client()
    ok(client.q("BEGIN"))
    ok(client.q(DEBIT, 100, S0[0]))
    with Stopwatch() as watch:
        status = cluster.router.end(signal.SIGINT)
    assert watch.seconds < 2 * SLACK and status in (0, 130, -2)
    wait_until(lambda: cluster.idle_in_transaction("s0") == 0, 5, "the transaction is rolled back")
    assert cluster.balance(S0[0]) == 1000


def test_sighup_takes_new_settings_and_keeps_clients_and_transactions(make_cluster):
    cluster = make_cluster(router_settings={"pool": {"size": 1, "acquire_timeout": "200ms"}}).up()
    cluster.load_accounts()
    holder, client = cluster.client(), cluster.client()
    ok(holder.q("BEGIN"))
    pid = ok(holder.q(DEBIT, 1, S0[0])).pid
    assert client.q(BALANCE, S0[1]).code == "R33"
    cluster.router.settings["pool"]["size"] = 3
    cluster.router.write_config()
    cluster.router.send(signal.SIGHUP)
    wait_until(lambda: client.q(BALANCE, S0[1]).ok, 10, "the pool has grown")
    assert ok(holder.q(CREDIT, 1, S0[0])).pid == pid
    ok(holder.q("COMMIT"))


BROKEN = [
    ("size = 8", "size = many", "[pool]"),
    ("size = 8", "size = 0", "[pool]"),
    ("size = 8", "colour = red", "[pool]"),
    ("[pool]", "[pond]", ""),
    ("size = 8", "size", "[pool]"),
]


@pytest.mark.parametrize("good, bad, section", BROKEN, ids=[bad for _, bad, _ in BROKEN])
def test_sighup_with_a_broken_file_keeps_the_settings_and_names_file_and_line(make_cluster, good, bad, section):
    cluster = make_cluster(router_settings={"pool": {"size": 8}}).up()
    cluster.load_accounts()
    client = cluster.client()
    ok(client.q(BALANCE, S0[0]))
    text = cluster.router.config.read_text().replace(good, bad)
    cluster.router.config.write_text(text)
    line = next(number for number, each in enumerate(text.splitlines(), 1) if each == bad)
    mark = cluster.router.log_mark()
    cluster.router.send(signal.SIGHUP)
    wait_until(lambda: f"{cluster.router.config}:{line}:" in cluster.router.log_since(mark), 10,
               f"the log names line {line}")
    ok(client.q(BALANCE, S0[0]))
    holders = [cluster.client() for _ in range(8)]
    for holder in holders:
        ok(holder.q("BEGIN"))
        ok(holder.q(BALANCE, S0[0]))
    # A good file is taken again afterwards.
    cluster.router.write_config()
    mark = cluster.router.log_mark()
    cluster.router.send(signal.SIGHUP)
    wait_until(lambda: cluster.router.log_since(mark).strip(), 10, "the reload is logged")
    assert f"{cluster.router.config}:" not in cluster.router.log_since(mark)


@pytest.mark.parametrize("good, bad, section", BROKEN, ids=[bad for _, bad, _ in BROKEN])
def test_a_broken_file_at_start_is_a_usage_error_that_names_file_and_line(make_cluster, tmp_path, good, bad, section):
    file = tmp_path / "broken.ini"
    file.write_text("[catalog]\nconninfo = host=127.0.0.1 port=1 dbname=app\n\n[pool]\nsize = 8\n".replace(good, bad))
    line = file.read_text().splitlines().index(bad) + 1
    done = run_interlock("serve", "-c", file)
    assert done.returncode == 2
    assert f"{file}:{line}:" in done.stderr, done.stderr


def test_a_missing_file_a_taken_port_and_a_missing_catalog_are_said_plainly(make_cluster, tmp_path):
    done = run_interlock("serve", "-c", tmp_path / "absent.ini")
    assert done.returncode == 2 and "absent.ini" in done.stderr
    done = run_interlock("serve")
    assert done.returncode == 2 and "catalog" in done.stderr
    cluster = make_cluster().up()
    done = run_interlock("serve", "--catalog", cluster.catalog.conninfo("app", "interlock_router"),
                         "--line-listen", f"127.0.0.1:{cluster.router.port}", timeout=30)
    assert done.returncode == 1 and str(cluster.router.port) in done.stderr


def test_flags_win_over_the_file_and_help_names_every_setting(make_cluster):
    cluster = make_cluster().start_instances().create_tables().describe()
    cluster.apply()
    router = cluster.new_router(settings={"pool": {"size": 1}})
    router.start("--pool-size", "2")
    cluster.load_accounts()
    holders = [cluster.client() for _ in range(2)]
    for holder in holders:
        ok(holder.q("BEGIN"))
        ok(holder.q(BALANCE, S0[0]))
    text = run_interlock("serve", "--help").stdout
    for flag in ("--catalog", "--line-listen", "--pool-size", "--config", "SIGHUP"):
        assert flag in text
