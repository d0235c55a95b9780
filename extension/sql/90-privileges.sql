-- Who may do what. An application role needs only the usual privileges on its tables.

REVOKE ALL ON ALL TABLES IN SCHEMA interlock FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA interlock FROM PUBLIC;
GRANT EXECUTE ON FUNCTION
    interlock.hash_key(anyelement),
    interlock.bucket_of(text, anyelement),
    interlock.owns(text, anyelement),
    interlock.owned(text, anyelement),
    interlock.greet(integer),
    -- Pages are read with the caller's own privileges on the table.
    interlock.keyset_page(text, anyelement, jsonb, text, text, integer),
    interlock.keyset_rows(text, anyelement, jsonb, text, text, integer, text[]),
    interlock.keyset_cursor(text, anyelement),
    interlock.keyset_predicate(text, jsonb, text, text, integer, text),
    interlock.keyset_state(text),
    interlock.sort_key(anyelement, boolean, boolean),
    interlock.group_key(anyelement),
    interlock.collation_fingerprint(),
    -- The guard runs as the person who writes; making a partition copies its triggers.
    interlock.refuse_write(text, anyelement),
    interlock.refuse_write(text, anyelement, anyelement),
    interlock.guard(),
    interlock.guard_truncate(),
    -- A mover that died must not leave a bucket shut: who meets its fence, opens it.
    interlock.expire_fences(),
    -- So does the outbox's trigger; it records attached tables only.
    interlock.outbox_capture(),
    interlock.outbox_truncate(),
    interlock.row_values(anyelement, text[])
TO PUBLIC;
-- The router asks with the client's own login.
GRANT SELECT ON interlock.keysets TO PUBLIC;
