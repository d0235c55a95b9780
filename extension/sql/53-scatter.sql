-- Which tables may be read by statements that all shards answer together.

ALTER TABLE interlock.sharded_table ADD COLUMN scatter boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN interlock.sharded_table.scatter IS
    'statements without a shard key may go to all shards, without a hint or setting of their own';

CREATE FUNCTION interlock.allow_scatter(table_name text, allowed boolean DEFAULT true) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted record;
    existing interlock.sharded_table;
BEGIN
    wanted := interlock.split_name('table', table_name);
    IF allowed IS NULL THEN
        RAISE EXCEPTION 'allowed must be true or false, not null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    PERFORM interlock.lock_cluster();
    SELECT * INTO existing FROM interlock.sharded_table t
     WHERE t.schema_name = wanted.schema_name AND t.table_name = wanted.object_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'table "%.%" is not declared as sharded', wanted.schema_name, wanted.object_name
            USING ERRCODE = 'undefined_object', HINT = 'Declare it with interlock.declare_table().';
    ELSIF existing.scatter = allowed THEN
        RAISE NOTICE 'statements on all shards are % for table "%.%" already, skipping',
            CASE WHEN allowed THEN 'allowed' ELSE 'not allowed' END, wanted.schema_name, wanted.object_name;
    ELSE
        UPDATE interlock.sharded_table t SET scatter = allow_scatter.allowed WHERE t.id = existing.id;
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.allow_scatter(text, boolean) IS
    'lets statements on a table without its shard key go to all shards, or no longer; without it a statement needs a hint or the setting interlock.scatter';
