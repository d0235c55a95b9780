-- Users of the routers' PostgreSQL listener. In force at once: they are no part of a route version.

CREATE FUNCTION interlock.add_client(name text, verifier text DEFAULT NULL, backend_login text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF name IS NULL OR name = '' OR octet_length(name) > 63 THEN
        RAISE EXCEPTION 'invalid name of a client user: "%"', name
            USING ERRCODE = 'invalid_name', DETAIL = 'A name has 1 to 63 bytes.';
    END IF;
    IF backend_login = '' THEN
        RAISE EXCEPTION 'role of client user "%" must not be empty', name USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- The verifier is not repeated in the message: it is half a secret.
    IF verifier !~ '^SCRAM-SHA-256\$[1-9][0-9]{0,8}:[A-Za-z0-9+/]+={0,2}\$[A-Za-z0-9+/]{43}=:[A-Za-z0-9+/]{43}=$' THEN
        RAISE EXCEPTION 'invalid verifier of client user "%"', name
            USING ERRCODE = 'invalid_parameter_value',
                  DETAIL = 'It must have the form SCRAM-SHA-256$iterations:salt$stored key:server key.',
                  HINT = 'pg_authid.rolpassword of a role that has the password is one, with password_encryption = scram-sha-256.';
    END IF;
    PERFORM interlock.lock_cluster();
    INSERT INTO interlock.client_user AS u (name, verifier, backend_login)
    VALUES (add_client.name, add_client.verifier, add_client.backend_login)
        ON CONFLICT ON CONSTRAINT client_user_pkey
        DO UPDATE SET verifier = excluded.verifier, backend_login = excluded.backend_login;
END
$$;
COMMENT ON FUNCTION interlock.add_client(text, text, text) IS
    'adds a user of the routers'' PostgreSQL listener, or replaces what is known of it; without verifier it has the password of the role of the same name, without backend_login it is the role of the same name on the shards';

CREATE FUNCTION interlock.remove_client(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM interlock.lock_cluster();
    DELETE FROM interlock.client_user u WHERE u.name = remove_client.name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'client user "%" does not exist', name USING ERRCODE = 'undefined_object';
    END IF;
END
$$;
COMMENT ON FUNCTION interlock.remove_client(text) IS
    'takes back add_client(); a role of that name may still log in with its own password';

-- What a router may know of one user whose name it was told. Superusers and replication roles are left
-- out: what their passwords are checked against does not leave the database for a router's sake.
CREATE FUNCTION interlock.client_verifier(name text, OUT verifier text, OUT backend_login text) RETURNS SETOF record
LANGUAGE sql STABLE SECURITY DEFINER ROWS 1 SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(u.verifier, r.verifier), coalesce(u.backend_login, client_verifier.name)
      FROM (SELECT) AS one
      LEFT JOIN interlock.client_user u ON u.name = client_verifier.name
      LEFT JOIN (SELECT a.rolname, CASE WHEN a.rolpassword LIKE 'SCRAM-SHA-256$%'
                                         AND (a.rolvaliduntil IS NULL OR a.rolvaliduntil > now())
                                        THEN a.rolpassword END AS verifier
                   FROM pg_authid a
                  WHERE a.rolcanlogin AND NOT a.rolsuper AND NOT a.rolreplication) AS r
        ON r.rolname::text = client_verifier.name
     WHERE u.name IS NOT NULL OR r.rolname IS NOT NULL
$$;
COMMENT ON FUNCTION interlock.client_verifier(text) IS
    'for routers: SCRAM verifier (or null) and role on the shards of a client user, or of a role that may log in; no row for others';
