"""The shards and the router agree about every key: at least a million of each type, extremes included."""

import subprocess

import psycopg
import pytest

from support.placement import bucket_of
from support.router import run_interlock

COUNT = 1_000_000
BUCKETS = 65_521  # a prime: every bit of the hash matters

# Per key type: the SQL type, extremes, and an expression that makes the i-th of a million keys.
KINDS = {
    "bigint": ("bigint",
               ["-9223372036854775808", "9223372036854775807", "0", "-1", "1", "4294967296", "-4294967297",
                "2147483647", "-2147483648", "32767", "-32768"],
               "CASE WHEN i % 2 = 0 THEN i ELSE hashint8extended(i, 7) END"),
    "uuid": ("uuid",
             ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff",
              "00000000-0000-0000-0000-000000000001", "80000000-0000-0000-0000-000000000000"],
             "md5(i::text)::uuid"),
    "text": ("text",
             ["", " ", "a", "A", "\\N", "\\", "\\x00", "NULL", "%", "\u00e9", "e\u0301", "\u20ac", "\U0001f600",
              "x" * 10_000, "\u00fc" * 300, "trailing ", " leading"],
             # Every length from 0 to 300 bytes (each branch of XXH3), with characters of 1 to 4 bytes.
             "substr(repeat(md5(i::text) || chr(161 + (i % 9000)::int) || chr(128512 + (i % 60)::int), 8),"
             " 1, (i % 290)::int) || i"),
    "bytea": ("bytea",
              ["\\x", "\\x00", "\\xff", "\\x0000", "\\x" + "00" * 240, "\\x" + "ff" * 241, "\\x" + "ab" * 5000],
              "substr(decode(repeat(md5(i::text), 20), 'hex'), 1, (i % 300)::int) || int8send(i)"),
}


@pytest.fixture(scope="module")
def shard(instance):
    """The module's instance, made a shard: only a shard has keyspaces."""
    instance.sql("SELECT interlock.set_identity('00000000-0000-0000-0000-000000000001', 's0')")
    return instance


def copy_out(server, query):
    """The rows of a one-column text query, one a line, without COPY's escapes (no key has line breaks)."""
    data = subprocess.check_output([server.bin / "psql", "-X", "-d", server.conninfo("app", "postgres"),
                                    "-c", f"COPY ({query}) TO STDOUT"], env=server.owner.environment())
    return data.replace(b"\\\\", b"\\")


@pytest.mark.parametrize("kind", KINDS)
def test_sql_and_router_put_a_million_keys_in_the_same_buckets(shard, router_binary, kind):
    sql_type, extremes, expression = KINDS[kind]
    with shard.connect() as connection:
        connection.execute("SELECT interlock.define_keyspace(%s, %s, %s, %s)", (
            f"million_{kind}", kind, "splitmix64" if kind == "bigint" else "xxh3_64", BUCKETS))
        connection.execute(f"CREATE UNLOGGED TABLE keys (n bigint GENERATED ALWAYS AS IDENTITY, k {sql_type})")
        connection.cursor().executemany(f"INSERT INTO keys (k) VALUES (%s::text::{sql_type})",
                                        [(key,) for key in extremes])
        connection.execute(f"INSERT INTO keys (k) SELECT {expression} FROM generate_series(1, {COUNT}::bigint) i")
    keys = copy_out(shard, "SELECT k::text FROM keys ORDER BY n")
    by_sql = copy_out(shard, f"SELECT interlock.bucket_of('million_{kind}', k) FROM keys ORDER BY n")
    shard.sql("DROP TABLE keys")
    assert keys.count(b"\n") == COUNT + len(extremes)
    done = run_interlock("placement", "--key-type", kind, "--buckets", BUCKETS, input=keys, text=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    if done.stdout != by_sql:
        rows = zip(keys.split(b"\n"), by_sql.split(b"\n"), done.stdout.split(b"\n"))
        different = [row for row in rows if row[1] != row[2]]
        pytest.fail(f"{len(different)} keys differ; (key, by SQL, by the router): {different[:5]}")
    # The comparison is worth something: the buckets are not all alike.
    assert len(set(by_sql.split())) > BUCKETS * 0.99


def test_bigint_buckets_are_those_computed_a_second_time(instance, router_binary):
    keys = [-(2**63), 2**63 - 1, 0, -1, 1, 42, *range(-500, 500), *(7**n % 2**63 for n in range(300))]
    done = run_interlock("placement", "--key-type", "bigint", "--buckets", 16,
                         input="".join(f"{key}\n" for key in keys))
    assert [int(word) for word in done.stdout.split()] == [bucket_of(key) for key in keys]


def test_xxh3_hashes_are_the_published_ones(instance):
    # XXH3 64-bit, seed 0, of the empty input: a fixed point of the published format.
    empty = 0x2D06800538D394C2
    signed = empty - (1 << 64) if empty >= 1 << 63 else empty
    assert instance.value("SELECT interlock.hash_key(''::text)") == signed
    assert instance.value("SELECT interlock.hash_key('\\x'::bytea)") == signed


def test_the_same_value_has_the_same_bucket_in_every_type_of_its_family(shard):
    with shard.connect() as connection:
        connection.execute("SELECT interlock.define_keyspace('family_int', 'bigint', 'splitmix64', 65536)")
        connection.execute("SELECT interlock.define_keyspace('family_text', 'text', 'xxh3_64', 65536)")
        connection.execute("CREATE DOMAIN key_domain AS integer")
        differing = connection.execute("""
            SELECT i FROM generate_series(-32768, 32767) i
            WHERE interlock.bucket_of('family_int', i::smallint) <> interlock.bucket_of('family_int', i::bigint)
               OR interlock.bucket_of('family_int', i::int) <> interlock.bucket_of('family_int', i::bigint)
               OR interlock.bucket_of('family_int', i::key_domain) <> interlock.bucket_of('family_int', i::bigint)
               OR interlock.bucket_of('family_text', i::varchar) <> interlock.bucket_of('family_text', i::text)
        """).fetchall()
        assert differing == []
        spellings = connection.execute("""
            SELECT count(DISTINCT interlock.hash_key(u::uuid)) FROM (VALUES
                ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'), ('A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'),
                ('{a0eebc99-9c0b4ef8-bb6d6bb9bd380a11}'), ('a0eebc999c0b4ef8bb6d6bb9bd380a11')) v(u)
        """).fetchone()
        assert spellings == (1,)
        with pytest.raises(psycopg.errors.DatatypeMismatch):
            connection.execute("SELECT interlock.bucket_of('family_int', 'a'::text)")


@pytest.mark.parametrize("key_type, line", [("bigint", "abc"), ("bigint", "9223372036854775808"), ("bigint", ""),
                                            ("uuid", "nope"), ("bytea", "\\xabc"), ("bytea", "\\xzz")])
def test_a_key_that_is_not_of_its_type_is_an_error_and_not_a_bucket(router_binary, key_type, line):
    done = run_interlock("placement", "--key-type", key_type, "--buckets", 16, input=f"{line}\n")
    assert done.returncode == 1 and done.stdout.strip() == "" and done.stderr.strip(), done
