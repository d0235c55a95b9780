"""What whoever owns a type cannot do through an index database."""

from support.shard import refusal

DEFINE = """SELECT interlock.index_define('risky', 'public.t', jsonb_build_array(
    jsonb_build_object('name', 'id', 'type', 'integer', 'collation', null, 'not_null', true),
    jsonb_build_object('name', 'v', 'type', %s::text, 'collation', null, 'not_null', false)), '{}', 'id', '{id}', NULL)"""


def test_a_domain_of_somebody_else_does_not_run_their_functions_as_the_extensions_owner(instance):
    instance.sql("""
        CREATE ROLE owner_of_types;
        CREATE SCHEMA theirs AUTHORIZATION owner_of_types;
        SET ROLE owner_of_types;
        CREATE DOMAIN theirs.label AS text;
        CREATE TYPE theirs.pair AS (a int, b theirs.label);
        CREATE DOMAIN theirs.span AS int;
        CREATE TYPE theirs.spans AS RANGE (subtype = theirs.span);
        CREATE TYPE theirs.mood AS ENUM ('calm');
    """)
    for kind in ("theirs.label", "theirs.label[]", "theirs.pair", "theirs.pair[]", "theirs.spans"):
        with refusal("42501"):
            instance.sql(DEFINE, kind)
    assert instance.sql(DEFINE, "theirs.mood[]") == [(True,)]
    instance.sql("SELECT interlock.index_remove('risky'); ALTER DOMAIN theirs.label OWNER TO postgres")
    assert instance.sql(DEFINE, "theirs.label") == [(True,)]


def test_tables_of_indexes_are_not_put_into_a_schema_of_somebody_else(instance):
    instance.sql("""
        DROP SCHEMA IF EXISTS interlock_index CASCADE;
        CREATE ROLE owner_of_schema;
        CREATE SCHEMA interlock_index AUTHORIZATION owner_of_schema;
    """)
    with refusal("42501"):
        instance.sql(DEFINE, "text")
    with refusal("42501"):
        instance.sql("SELECT interlock.grant_indexer('owner_of_schema')")
    instance.sql("ALTER SCHEMA interlock_index OWNER TO postgres")
    assert instance.sql(DEFINE, "text") == [(True,)]
