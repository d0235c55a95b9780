"""What a move must leave behind, whatever happened to it: one owner of each bucket, and nothing else."""

# What is to be found nowhere once no move is under way, on a shard: what it is -> a query of one text column.
ARTEFACTS = {
    "slot": "SELECT slot_name::text FROM pg_replication_slots",
    "publication": "SELECT pubname::text FROM pg_publication",
    "subscription": "SELECT subname::text FROM pg_subscription",
    "replication origin": "SELECT roname FROM pg_replication_origin",
    "followed slot": "SELECT slot_name::text FROM interlock.move_slot",
    "marker": "SELECT move_id::text FROM interlock.move_marker",
    "handoff": "SELECT format('%s of %s: %s', role, buckets, state) FROM interlock.handoff",
    "prepared transaction": "SELECT gid FROM pg_prepared_xacts",
}
IN_THE_CATALOG = {
    "unfinished move": "SELECT format('%s at %s: %s', id, step, error) FROM interlock.moves WHERE finished IS NULL",
    "reserved number": "SELECT format('%s for %s', reserved_version, reserved_move) FROM interlock.cluster WHERE reserved_version IS NOT NULL",
    "recorded artefact": "SELECT format('%s %s on shard %s of %s', kind, name, shard, move) FROM interlock.move_artefact",
}


def states(cluster, bucket, keyspace="accounts"):
    """Shard -> state of the bucket there (None: no row)."""
    return {shard: cluster.instances[shard].value(
        "SELECT state FROM interlock.bucket_state WHERE keyspace = %s AND bucket = %s", keyspace, bucket) for shard in cluster.shards}


def owners(cluster, bucket, keyspace="accounts"):
    """The shards that would take a write of the bucket."""
    return [shard for shard, state in states(cluster, bucket, keyspace).items() if state == "owned"]


def routes(cluster, keyspace="accounts"):
    """Bucket -> shard, as published."""
    return dict(cluster.catalog.sql("SELECT bucket, shard FROM interlock.routes WHERE keyspace = %s", keyspace))


def ownership_faults(cluster, keyspace="accounts"):
    """Buckets that not exactly one shard owns, or another one than is published."""
    found = {bucket: [] for bucket in routes(cluster, keyspace)}
    faults = []
    for shard in cluster.shards:
        for bucket, state in cluster.instances[shard].sql(
                "SELECT bucket, state FROM interlock.bucket_state WHERE keyspace = %s AND state <> 'moved'", keyspace):
            if state == "owned":
                found[bucket].append(shard)
            else:
                faults.append(f"bucket {bucket} is {state} on {shard}")
    return faults + [f"bucket {bucket} belongs to {shard}, and {found[bucket]} own it"
                     for bucket, shard in routes(cluster, keyspace).items() if found[bucket] != [shard]]


def misplaced_rows(cluster):
    """Rows on shards that do not own them: they would come to light again with the bucket."""
    faults = []
    for shard in cluster.shards:
        for table, count in cluster.instances[shard].sql(
                "SELECT g.relid::regclass::text, (SELECT count(*) FROM interlock.misplaced(g.relid)) FROM interlock.guarded_table g"):
            if count:
                faults.append(f"{count} rows of {table} on {shard}, which does not own them")
    return faults


def found_by(instance, queries):
    """(what, text) of whatever the queries find, asked for in one session."""
    parts = [f"SELECT '{what}', text FROM ({query}) AS found (text)" for what, query in queries.items()]
    return instance.sql(" UNION ALL ".join(parts))


def leftovers(cluster):
    found = [f"{what} in the catalog: {text}" for what, text in found_by(cluster.catalog, IN_THE_CATALOG)]
    for shard in cluster.shards:
        found += [f"{what} on {shard}: {text}" for what, text in found_by(cluster.instances[shard], ARTEFACTS)]
    return found


def assert_settled(cluster, *keyspaces, artefacts=True):
    """No move is under way and none has left anything. `artefacts=False`: owners and rows only."""
    faults = [fault for keyspace in keyspaces or ("accounts",) for fault in ownership_faults(cluster, keyspace)]
    faults += misplaced_rows(cluster)
    if artefacts:
        faults += leftovers(cluster)
    assert not faults, "\n".join(faults)
