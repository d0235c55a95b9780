"""The control of the protocol tests: the same conversation with PostgreSQL itself.

`both` holds it twice, first with the shard, then with the router, and demands the same answers. So no test
of the listener rests on what somebody believes PostgreSQL to do.
"""

from .placement import keys_on

# Keys of s0, where the control is. KEYS[0] is the usual one.
KEYS = keys_on("s0", 20)
KEY = KEYS[0]

# Codes the router may put a reason of its own behind; the SQLSTATE is PostgreSQL's.
OWN_WORDS = {"25P02", "42601", "08P01", "0A000"}


def comparable(message):
    plain = message.plain()
    if message.kind in "EN" and message.code in OWN_WORDS:
        return message.name, {code: plain[1][code] for code in "SVC"}
    return plain


def in_order(messages):
    """The messages, with each round's ParameterStatus before its ReadyForQuery, by name.

    PostgreSQL itself has moved them from one version to another; clients take them anywhere.
    """
    found, reports = [], {}
    for message in messages:
        if message.kind == "S":
            reports[message.parts[0]] = message
            continue
        if message.kind == "Z":
            found += [reports[name] for name in sorted(reports)]
            reports = {}
        found.append(message)
    return found + list(reports.values())


def reset(cluster):
    """Puts back the accounts of s0, whatever was done to them."""
    with cluster.s0.connect() as direct, direct.transaction():
        direct.execute("SET LOCAL lock_timeout = '20s'")
        direct.execute("DELETE FROM account")
        direct.execute("INSERT INTO account SELECT k, 'owner' || k, 1000, 0 FROM unnest(%s::bigint[]) k", (KEYS,))


def both(cluster, talk, **options):
    """Runs `talk(client)` with the shard and with the router; returns what it returned for the router.

    Every message that a client received is compared, in order, so a talk only has to be silent about what may
    differ (process ids). What `talk` asserts, it asserts of PostgreSQL first.
    """
    def direct(**options):
        reset(cluster)
        return cluster.direct(**options)

    def through_router(**options):
        reset(cluster)
        return cluster.pg_client(**options)

    return same_conversation(talk, (direct, through_router), comparable, **options)


def same_conversation(talk, ways, comparable, **options):
    """Runs `talk(client)` with a client of each of the two `ways` to connect, PostgreSQL's first; demands the same
    `comparable` messages, and returns what it returned for the router."""
    records = []
    for connect in ways:
        client = connect(**options)
        client.record = []
        result = talk(client)
        records.append(client.record)
        client.close()
    control, router = ([comparable(message) for message in in_order(record)] for record in records)
    for place, (expected, got) in enumerate(zip(control, router)):
        assert got == expected, (f"message {place} of the router differs\nPostgreSQL: {expected}\n"
                                 f"router:     {got}\nbefore: {router[max(0, place - 6):place]}")
    assert len(control) == len(router), (f"PostgreSQL also said {control[len(router):]}, "
                                         f"the router also said {router[len(control):]}")
    return result
