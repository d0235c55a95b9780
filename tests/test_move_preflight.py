"""What `interlock move` checks first: everything wrong is told at once, and what each line says to run mends it."""

import json
import re

import pytest

from support.moves import move_to_its_end
from support.moving import MovingCluster
from support.wait import wait_until

BUCKET = 0
MOVE = ("--keyspace", "accounts", "--bucket", BUCKET, "--to", "s1")
ON_BOTH = ("s0", "s1")


@pytest.fixture(scope="module")
def shared(owner, new_folder, router_binary):
    cluster = MovingCluster(new_folder("preflight"), owner)
    try:
        yield cluster.up()
    finally:
        cluster.down()


@pytest.fixture
def cluster(shared):
    yield shared
    shared.end_test()


def plan(cluster, *arguments, env=None):
    """The findings of `interlock move --plan`: [(severity, what, detail, mend)]. The bucket is named unless the arguments do."""
    words = arguments if "--to" in arguments else (*MOVE, *arguments)
    done = move_to_its_end(cluster.catalog_conninfo(), *words, "--plan", "--json", expect=None, env=env)
    assert done.returncode in (0, 1) and done.stdout, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[0]["event"] == "plan", (done.stdout, done.stderr)
    findings = [(e["severity"], e["what"], e["detail"], e["mend"]) for e in events if e["event"] == "finding"]
    assert done.returncode == (1 if any(severity == "refuse" for severity, *_ in findings) else 0), (done.stderr, findings)
    return findings


def clean(cluster, *arguments):
    findings = plan(cluster, *arguments)
    assert findings == [], findings


def the_one(findings, *words):
    found = [finding for finding in findings if all(word in finding[1] for word in words)]
    assert len(found) == 1, (words, findings)
    return found[0]


def do_as_told(cluster, finding):
    """Runs what the finding says to run, where it says; of several ways the first."""
    mend = finding[3]
    told = re.findall(r"[Oo]n (?:shard \"(s\d)\"|(both) shards), run: (.*?;)(?=$| or | then | -- | and )", mend)
    assert told, mend
    shard, both, statements = told[0]
    for name in ON_BOTH if both else (shard,):
        for statement in filter(None, re.split(r";\s*", statements)):
            cluster.instances[name].sql(statement)


def mend(cluster, *arguments):
    """Does as it is told until nothing is left to do."""
    for _ in range(10):
        findings = plan(cluster, *arguments)
        if not findings:
            return
        do_as_told(cluster, findings[0])
    raise AssertionError(f"still not mended: {findings}")


def everywhere(cluster, text):
    for name in ON_BOTH:
        cluster.instances[name].sql(text)


def test_nothing_stands_in_the_way_of_shards_that_are_alike(cluster):
    everywhere(cluster, "ANALYZE account")
    done = move_to_its_end(cluster.catalog_conninfo(), *MOVE, "--plan")
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("would move, of keyspace accounts from s0 to s1:\n  1. bucket 0\n")
    assert re.search(r"public.account: about \d+ rows, ", done.stdout), done.stdout
    # Nothing was made: no subscription, slot, publication or record is there.
    for name in ON_BOTH:
        assert cluster.instances[name].value("SELECT count(*) FROM pg_subscription") == 0
        assert cluster.instances[name].value("SELECT count(*) FROM pg_replication_slots") == 0
    assert cluster.catalog.value("SELECT count(*) FROM interlock.moves") == 0


def test_the_plan_says_how_much_is_to_be_moved_once_that_is_known(cluster):
    cluster.fill(moved=BUCKET, near=2)
    cluster.s0.sql("ANALYZE account")
    done = move_to_its_end(cluster.catalog_conninfo(), *MOVE, "--plan")
    cluster.fill()
    # Of two of the shard's eight buckets, which it cannot know.
    assert "public.account: about 1 rows, " in done.stdout, done.stdout


# -- what differs: where what is done, words of the finding, its severity ------------------------------

CASES = {
    "no identity": ("s0", "ALTER TABLE account REPLICA IDENTITY NOTHING", ("replica identity of table public.account",), "refuse"),
    "identity without the key": ("s0", """
        ALTER TABLE posting ADD COLUMN id bigint NOT NULL; CREATE UNIQUE INDEX other ON posting (id) INCLUDE (account_id);
        ALTER TABLE posting REPLICA IDENTITY USING INDEX other""", ("replica identity of table public.posting",), "refuse"),
    "unlogged": ("s0", "ALTER TABLE account SET UNLOGGED", ("unlogged",), "refuse"),
    "missing column": ("s0", "ALTER TABLE account ADD COLUMN a1 varchar(20) COLLATE \"C\"", ("column a1 of table public.account is missing on shard \"s1\"",), "refuse"),
    "extra column": ("s1", "ALTER TABLE account ADD COLUMN a2 text", ("column a2 of table public.account is on shard \"s1\" only",), "refuse"),
    "other type": ("s1", "ALTER TABLE register ALTER COLUMN value TYPE int", ("column value of table public.register differs",), "refuse"),
    "other collation": ("s1", "ALTER TABLE account ALTER COLUMN owner TYPE text COLLATE \"POSIX\"", ("column owner of table public.account differs",), "refuse"),
    "not null": ("s0", "ALTER TABLE account ALTER COLUMN owner SET NOT NULL", ("column owner of table public.account differs",), "refuse"),
    "generated": ("s0", "ALTER TABLE account ADD COLUMN twice bigint GENERATED ALWAYS AS (balance * 2) STORED", ("column twice of table public.account is missing",), "refuse"),
    "missing index": ("s0", "CREATE INDEX by_balance ON account (balance)", ("index public.by_balance of table public.account is missing",), "warn"),
    "missing unique index": ("s0", "CREATE UNIQUE INDEX one ON account (account_id, balance)", ("unique index public.one",), "refuse"),
    "extra unique index": ("s1", "CREATE UNIQUE INDEX two ON account (account_id, owner)", ("unique index public.two", "only"), "refuse"),
    "unique constraint": ("s0", "ALTER TABLE register ADD CONSTRAINT three UNIQUE (account_id, value)", ("unique index public.three",), "refuse"),
    "missing check": ("s0", "ALTER TABLE account ADD CONSTRAINT small CHECK (balance < 1000000)", ("constraint small of table public.account is missing",), "refuse"),
    "extra check": ("s1", "ALTER TABLE account ADD CONSTRAINT \"Large\" CHECK (balance < 2000000)", ("constraint \"Large\" of table public.account is on",), "refuse"),
    "foreign key": ("s0", "ALTER TABLE posting ADD CONSTRAINT of_account FOREIGN KEY (account_id) REFERENCES account", ("constraint of_account of table public.posting",), "refuse"),
    "missing grant": ("s0", "GRANT SELECT, UPDATE ON account TO teller", ("grant to teller on table public.account is missing",), "warn"),
    "row security": ("s0", "ALTER TABLE account ENABLE ROW LEVEL SECURITY", ("row security of table public.account is missing",), "refuse"),
    "forced row security": ("s0", "ALTER TABLE account FORCE ROW LEVEL SECURITY", ("row security of table public.account differs",), "refuse"),
    "policy": ("s0", "CREATE POLICY own ON account FOR SELECT TO app USING (balance > 0)", ("policy own of table public.account is missing",), "refuse"),
    "trigger": ("s0", "CREATE TRIGGER \"Touch\" BEFORE UPDATE ON account FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
                ("trigger \"Touch\" of table public.account is missing",), "warn"),
    "outbox": ("s0", "SELECT interlock.outbox_attach('account', '{balance}')", ("outbox stream default of table public.account is missing",), "refuse"),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.replace(" ", "-"))
def test_what_differs_between_the_shards_is_told_and_the_mend_mends_it(cluster, case):
    shard, statement, words, severity = CASES[case]
    everywhere(cluster, "DO $$ BEGIN CREATE ROLE teller; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    clean(cluster)
    cluster.instances[shard].sql(statement)
    assert the_one(plan(cluster), *words)[0] == severity
    if case == "identity without the key":
        # Of that one nobody can say how it is to be mended.
        cluster.instances["s0"].sql("ALTER TABLE posting REPLICA IDENTITY DEFAULT; DROP INDEX other")
    mend(cluster)


TYPES = {
    "enum": ("CREATE TYPE mood AS ENUM ('sad', 'glad')", "CREATE TYPE mood AS ENUM ('glad', 'sad')"),
    "domain": ("CREATE DOMAIN mood AS int CHECK (VALUE > 0)", "CREATE DOMAIN mood AS int CHECK (VALUE > 1)"),
    "composite": ("CREATE TYPE mood AS (a int, b text)", "CREATE TYPE mood AS (b text, a int)"),
    "range": ("CREATE TYPE mood AS RANGE (subtype = int4)", "CREATE TYPE mood AS RANGE (subtype = int8)"),
}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("used_as", ["mood", "mood[]", "wrapped"])
def test_types_of_one_name_that_are_not_the_same_are_told(cluster, kind, used_as):
    try:
        for name, definition in zip(ON_BOTH, TYPES[kind]):
            cluster.instances[name].sql(f"{definition}; CREATE TYPE wrapped AS (inner_mood mood); ALTER TABLE account ADD COLUMN x {used_as}")
        finding = the_one(plan(cluster), "type public.mood differs")
        assert finding[0] == "refuse" and 's0": ' in finding[2] and 's1": ' in finding[2], finding
    finally:
        everywhere(cluster, "ALTER TABLE account DROP COLUMN IF EXISTS x; DROP TYPE IF EXISTS wrapped; DROP TYPE IF EXISTS mood")
    clean(cluster)


# -- surroundings ----------------------------------------------------------------------------------


def test_another_version_of_the_extension_is_told(cluster):
    version = cluster.s1.value("SELECT extversion FROM pg_extension WHERE extname = 'interlock'")
    cluster.s1.sql("UPDATE pg_extension SET extversion = '0.0' WHERE extname = 'interlock'")
    try:
        finding = the_one(plan(cluster), "different versions of the extension")
    finally:
        cluster.s1.sql("UPDATE pg_extension SET extversion = %s WHERE extname = 'interlock'", version)
    assert finding[0] == "refuse" and f"shard \"s0\": {version}; shard \"s1\": 0.0." in finding[2], finding
    assert "ALTER EXTENSION interlock UPDATE;" in finding[3]
    clean(cluster)


@pytest.mark.parametrize("options", ["ENCODING 'SQL_ASCII'", "ENCODING 'LATIN1' LOCALE 'C'"])
def test_another_encoding_is_refused_and_nothing_is_changed(make_moving, options):
    """Bytes that one side takes for a character are none, or another one, for the other."""
    cluster = make_moving().start_instances()
    encoding = cluster.s0.value("SELECT getdatabaseencoding()")
    cluster.s1.sql("DROP DATABASE app", dbname="postgres")
    cluster.s1.sql(f"CREATE DATABASE app {options} TEMPLATE template0", dbname="postgres")
    cluster.s1.sql("CREATE EXTENSION interlock")
    cluster.create_tables().describe()
    cluster.apply()
    finding = the_one(plan(cluster), "different encodings")
    other = options.split("'")[1]
    assert finding[0] == "refuse" and f"shard \"s0\": {encoding}; shard \"s1\": {other}." in finding[2], finding
    assert f"ENCODING '{encoding}' TEMPLATE template0;" in finding[3]
    done = cluster.move(BUCKET, "s1", expect=1)
    assert "ERROR:  the shards have different encodings\n" in done.stderr and "refused, nothing was changed" in done.stderr, done.stderr
    assert cluster.catalog.value("SELECT count(*) FROM interlock.moves") == 0
