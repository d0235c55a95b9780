-- Keysets: declared total orders over tables, and their pages. Useful with no cluster at all.

CREATE TABLE interlock.keyset (
    name text PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 63),
    relid regclass NOT NULL,
    scope text[] NOT NULL,
    columns text[] NOT NULL CHECK (cardinality(columns) > 0),
    descending boolean[] NOT NULL CHECK (cardinality(descending) = cardinality(columns)),
    nulls_first boolean[] NOT NULL CHECK (cardinality(nulls_first) = cardinality(columns)),
    collations regcollation[] NOT NULL CHECK (cardinality(collations) = cardinality(columns)),
    max_page integer NOT NULL CHECK (max_page >= 1),
    default_page integer NOT NULL CHECK (default_page BETWEEN 1 AND max_page),
    signed boolean NOT NULL,
    scatter boolean,
    source_keyset text CHECK ((source_keyset IS NULL) = (source_table IS NULL)),
    source_schema text CHECK ((source_keyset IS NULL) = (source_schema IS NULL)),
    source_table text
);
COMMENT ON TABLE interlock.keyset IS 'declared keysets; made by keyset_create(), which checks them';
COMMENT ON COLUMN interlock.keyset.columns IS 'of the order, with the three arrays that follow';
COMMENT ON COLUMN interlock.keyset.collations IS 'as given by COLLATE; 0 where it is the column''s own';
COMMENT ON COLUMN interlock.keyset.scatter IS 'whether pages are merged across shards; NULL: if the table is sharded';
COMMENT ON COLUMN interlock.keyset.source_keyset IS 'of an index table: the keyset whose cursors and sort keys these are, with its table''s name; NULL otherwise';
SELECT pg_catalog.pg_extension_config_dump('interlock.keyset', '');

-- Sessions keep the declarations they use: every change makes them read again (see keyset_cache.cpp).
CREATE TRIGGER state_changed AFTER INSERT OR UPDATE OR DELETE ON interlock.keyset
    FOR EACH ROW EXECUTE FUNCTION interlock.state_changed();
CREATE TRIGGER state_truncated AFTER TRUNCATE ON interlock.keyset
    FOR EACH STATEMENT EXECUTE FUNCTION interlock.state_changed();
ALTER TABLE interlock.keyset ENABLE ALWAYS TRIGGER state_changed, ENABLE ALWAYS TRIGGER state_truncated;

CREATE FUNCTION interlock.keyset_create(name text, "table" regclass, scope text[], "order" text,
    max_page integer DEFAULT 1000, default_page integer DEFAULT 50, signed boolean DEFAULT true,
    scatter boolean DEFAULT NULL) RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'interlock_keyset_create';
COMMENT ON FUNCTION interlock.keyset_create(text, regclass, text[], text, integer, integer, boolean, boolean) IS
    'declares a total order over a table within each value of its scope columns, to be read page by page';

CREATE FUNCTION interlock.keyset_create_index(name text, "table" regclass, source_keyset text, source_table text,
    scope text[], "order" text, max_page integer DEFAULT 1000, default_page integer DEFAULT 50) RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'interlock_keyset_create_index';
COMMENT ON FUNCTION interlock.keyset_create_index(text, regclass, text, text, text[], text, integer, integer) IS
    'declares the order of an index table: its cursors and sort keys are those of the keyset that it is an index of';

CREATE FUNCTION interlock.keyset_drop(name text) RETURNS void
LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'interlock_keyset_drop';
COMMENT ON FUNCTION interlock.keyset_drop(text) IS 'forgets a keyset; its cursors are worth nothing afterwards';

CREATE FUNCTION interlock.keyset_page(keyset text, row_type anyelement, scope jsonb DEFAULT NULL,
    after text DEFAULT NULL, before text DEFAULT NULL, page_size integer DEFAULT NULL)
    RETURNS TABLE (item anyelement, cursor text, sort_key bytea, complete boolean, missing_shards text[])
LANGUAGE C STABLE PARALLEL RESTRICTED ROWS 50 AS 'MODULE_PATHNAME', 'interlock_keyset_page';
COMMENT ON FUNCTION interlock.keyset_page(text, anyelement, jsonb, text, text, integer) IS
    'one page of a keyset, the first or the one after or before a cursor, with a cursor for each row; row_type is NULL::table';

CREATE FUNCTION interlock.keyset_rows(keyset text, row_type anyelement, scope jsonb DEFAULT NULL,
    after text DEFAULT NULL, before text DEFAULT NULL, page_size integer DEFAULT NULL, cursors text[] DEFAULT '{}')
    RETURNS TABLE (item anyelement, cursor text, sort_key bytea, complete boolean, missing_shards text[])
LANGUAGE C STABLE PARALLEL RESTRICTED ROWS 50 AS 'MODULE_PATHNAME', 'interlock_keyset_rows';
COMMENT ON FUNCTION interlock.keyset_rows(text, anyelement, jsonb, text, text, integer, text[]) IS
    'the rows that cursors stand for, in the order of these; what has left its scope or its place in the order is not among them. after, before and page_size mean nothing here';

CREATE FUNCTION interlock.keyset_cursor(keyset text, "row" anyelement) RETURNS text
LANGUAGE C STABLE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'interlock_keyset_cursor';
COMMENT ON FUNCTION interlock.keyset_cursor(text, anyelement) IS
    'cursor of a row that the caller already has; it is bound to the scope that the row is in';

CREATE FUNCTION interlock.keyset_predicate(keyset text, scope jsonb, after text DEFAULT NULL, before text DEFAULT NULL,
    first_parameter integer DEFAULT 1, alias text DEFAULT NULL)
    RETURNS TABLE (predicate text, order_by text, parameters text[])
LANGUAGE C STABLE PARALLEL RESTRICTED ROWS 1 AS 'MODULE_PATHNAME', 'interlock_keyset_predicate';
COMMENT ON FUNCTION interlock.keyset_predicate(text, jsonb, text, text, integer, text) IS
    'WHERE and ORDER BY of a page for SQL of one''s own; values are parameters only. Before a cursor, rows come in reverse';

CREATE FUNCTION interlock.keyset_decode(cursor text)
    RETURNS TABLE (keyset text, version integer, key_id integer, authentic boolean, column_name text, value text)
LANGUAGE C STABLE STRICT PARALLEL RESTRICTED ROWS 3 AS 'MODULE_PATHNAME', 'interlock_keyset_decode';
COMMENT ON FUNCTION interlock.keyset_decode(text) IS
    'what a cursor says; its keyset is NULL if no present declaration is its own. For support staff';

CREATE FUNCTION interlock.keyset_state(name text, OUT scatter boolean, OUT digest text) RETURNS record
LANGUAGE C STABLE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'interlock_keyset_state';
COMMENT ON FUNCTION interlock.keyset_state(text) IS
    'whether a keyset is merged across shards, and what its cursors are bound to; NULL if it does not fit its table any more';

CREATE VIEW interlock.keysets AS
    SELECT k.name, k.relid AS "table", k.scope,
           (SELECT string_agg(format('%I', o.name)
                              || CASE WHEN o.given <> 0 THEN format(' COLLATE %s', o.given) ELSE '' END
                              || CASE WHEN o.descending THEN ' DESC' ELSE '' END
                              || CASE WHEN o.nulls_first = o.descending THEN ''
                                      WHEN o.nulls_first THEN ' NULLS FIRST' ELSE ' NULLS LAST' END,
                              ', ' ORDER BY o.position)
              FROM unnest(k.columns, k.descending, k.nulls_first, k.collations)
                   WITH ORDINALITY AS o(name, descending, nulls_first, given, position)) AS "order",
           k.max_page, k.default_page, k.signed, coalesce(k.scatter, s.scatter) AS scatter, s.digest
      FROM interlock.keyset k CROSS JOIN LATERAL interlock.keyset_state(k.name) s;
COMMENT ON VIEW interlock.keysets IS 'declared keysets; digest is what their cursors are bound to, NULL where the table has changed so that a keyset cannot be used';

CREATE FUNCTION interlock.owned(keyspace text, key anyelement) RETURNS boolean
LANGUAGE C STABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'interlock_owned';
COMMENT ON FUNCTION interlock.owned(text, anyelement) IS
    'whether this shard answers reads of the key''s bucket: rows of a move in progress are not counted twice';
