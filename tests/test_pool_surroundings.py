"""What else a shard holds beside the declared tables: names that could mean something else are refused,
tables that run code of users have their sessions cleaned."""

import pytest

from support.cluster import Cluster
from support.placement import keys_on
from support.wait import wait_until

KEY = keys_on("s0", 1)[0]

# Each with the statement it matters to, the search_path, and whether that path finds it.
SETUP = {
    "relation": "CREATE TABLE other.account (account_id bigint, owner text, balance bigint, version int);"
                "GRANT ALL ON other.account TO app",
    "function": "CREATE FUNCTION other.abs(text) RETURNS text LANGUAGE sql AS 'SELECT $1'",
    "hidden function": "CREATE FUNCTION other.abs(bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint'",
    "function of a type of users": "CREATE TYPE other.t AS (a int);"
                                   "CREATE FUNCTION other.abs(other.t) RETURNS int LANGUAGE sql AS 'SELECT 0'",
    "operator": "CREATE FUNCTION other.eq(bigint, text) RETURNS bool LANGUAGE sql AS 'SELECT true';"
                "CREATE OPERATOR other.= (LEFTARG = bigint, RIGHTARG = text, FUNCTION = other.eq)",
    "operator of a domain": "CREATE DOMAIN other.d AS bigint;"
                            "CREATE FUNCTION other.deq(other.d, other.d) RETURNS bool LANGUAGE sql AS 'SELECT true';"
                            "CREATE OPERATOR other.= (LEFTARG = other.d, RIGHTARG = other.d, FUNCTION = other.deq)",
    "hidden operator": "CREATE FUNCTION other.eq8(bigint, bigint) RETURNS bool LANGUAGE sql AS 'SELECT true';"
                       "CREATE OPERATOR other.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = other.eq8)",
}
ABS = f"SELECT abs(balance) FROM public.account WHERE account_id OPERATOR(pg_catalog.=) {KEY}"
EQUAL = f"SELECT balance FROM public.account WHERE account_id = {KEY}"
PLAIN = f"SELECT balance FROM account WHERE account_id = {KEY}"


@pytest.fixture(scope="module")
def module_cluster(owner, new_folder, request, router_binary):
    cluster = Cluster(new_folder(request.module.__name__), owner, router_settings={"pg": {}, "pool": {"size": 1}})
    try:
        cluster.start_instances().create_tables().describe()
        cluster.apply()
        cluster.new_router().start()
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def other(cluster):
    """The schema `other` on s0; what is made there is found by backends made afterwards."""
    cluster.s0.sql("CREATE SCHEMA other; GRANT USAGE ON SCHEMA other TO app")
    yield cluster.s0
    cluster.s0.sql("DROP SCHEMA other CASCADE")
    greet_again(cluster)


def greet_again(cluster):
    cluster.s0.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
    wait_until(lambda: cluster.s0.value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'") == 0, 10,
               "the backends are gone")


def state_of(client, sql):
    """SQLSTATE of a statement's error; None if it succeeded."""
    answer = client.query(sql)
    return answer.codes[0] if answer.codes else None


@pytest.mark.parametrize("what, sql, conflicts", [
    ("relation", PLAIN, {"other, public": "IL026", "public, other": None, "public": None}),
    ("function", ABS, {"public, other": "IL026", "public": None}),
    ("hidden function", ABS, {"other, public": None}),
    ("function of a type of users", ABS, {"other, public": None}),
    ("operator", EQUAL, {"public, other": "IL026", "public": None}),
    ("operator of a domain", EQUAL, {"public, other": "IL026"}),
    ("hidden operator", EQUAL, {"other, public": None}),
])
def test_a_name_that_could_mean_something_else_on_the_shard_is_refused(cluster, other, what, sql, conflicts):
    other.sql(SETUP[what])
    greet_again(cluster)
    client = cluster.pg_client()
    for path, state in conflicts.items():
        assert state_of(client, f"SET search_path = {path}") is None
        assert state_of(client, sql) == state, path


USER_CODE = {
    "a trigger": "CREATE TRIGGER t BEFORE UPDATE ON account FOR EACH ROW EXECUTE FUNCTION other.trigger()",
    "a default": "ALTER TABLE account ADD c text DEFAULT other.code('a')",
    "a check": "ALTER TABLE account ADD CHECK (other.code(owner) <> '')",
    "a check of a domain": "CREATE DOMAIN other.word AS text CHECK (other.code(VALUE) <> '');"
                           "ALTER TABLE account ADD c other.word",
    "a generated column": "ALTER TABLE account ADD c text GENERATED ALWAYS AS (other.code(owner)) STORED",
    "an index expression": "CREATE INDEX c ON account (other.code(owner))",
    "a policy": "CREATE POLICY c ON account USING (other.code(owner) <> '')",
    "a rule": "CREATE RULE c AS ON DELETE TO account DO ALSO NOTHING",
    "a built-in function with effects": "ALTER TABLE account ADD CHECK (set_config('a.b', owner, false) <> 'no')",
    "a trigger of a table that refers to it":
        "CREATE TABLE other.child (id bigint REFERENCES account ON DELETE CASCADE);"
        "CREATE TRIGGER t BEFORE DELETE ON other.child FOR EACH ROW EXECUTE FUNCTION other.trigger()",
    "an operator of users": "CREATE OPERATOR other.=== (LEFTARG = text, RIGHTARG = text, FUNCTION = other.same);"
                            "ALTER TABLE account ADD CHECK (owner OPERATOR(other.===) owner)",
}
NO_USER_CODE = {
    "nothing": "SELECT 1",
    "built-in functions": "ALTER TABLE account ADD c text DEFAULT lower('A') CHECK (length(c) < 100)",
    "a disabled trigger": "CREATE TRIGGER t BEFORE UPDATE ON account FOR EACH ROW EXECUTE FUNCTION other.trigger();"
                          "ALTER TABLE account DISABLE TRIGGER t",
    "a foreign key without effects on the table that refers to it":
        "CREATE TABLE other.child (id bigint REFERENCES account);"
        "CREATE TRIGGER t BEFORE DELETE ON other.child FOR EACH ROW EXECUTE FUNCTION other.trigger()",
}


@pytest.mark.parametrize("what, cleaned", [*((what, True) for what in USER_CODE),
                                           *((what, False) for what in NO_USER_CODE)])
def test_sessions_of_a_table_are_cleaned_exactly_if_it_runs_code_of_users(make_cluster, what, cleaned):
    cluster = make_cluster(shard_settings={"log_statement": "all"}, router_settings={"pg": {}, "pool": {"size": 1}})
    cluster.start_instances().create_tables().describe()
    cluster.s0.sql("""
        CREATE SCHEMA other; GRANT USAGE ON SCHEMA other TO app;
        CREATE FUNCTION other.trigger() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
        CREATE FUNCTION other.code(text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1 || ''x''; END';
        CREATE FUNCTION other.same(text, text) RETURNS bool IMMUTABLE LANGUAGE plpgsql
            AS 'BEGIN RETURN $1 = $2; END'""")
    cluster.apply()
    cluster.load_accounts()
    cluster.s0.sql({**USER_CODE, **NO_USER_CODE}[what])
    cluster.new_router().start()
    mark = cluster.s0.log_mark()
    for client in (cluster.pg_client(), cluster.pg_client()):
        assert state_of(client, f"UPDATE account SET version = version + 1 WHERE account_id = {KEY}") is None
    # The next one is served after the cleaning, if there was one.
    assert ("DISCARD ALL" in cluster.s0.log_since(mark)) == cleaned
