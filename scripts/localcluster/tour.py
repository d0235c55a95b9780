"""The tour: statements, and the answers of a running cluster. Each answer is checked as it is shown."""

from .instance import InstanceError
from .line import LineClient, parse_answer

OWNERS = ("ann", "bob", "cem", "dora")
SELECT = "SELECT * FROM account WHERE account_id = ?"
DEBIT = "UPDATE account SET balance = balance - ? WHERE account_id = ?"
CREDIT = "UPDATE account SET balance = balance + ? WHERE account_id = ?"


def ended(sql):
    """A statement ends with its semicolon, or with a command of psql that sends it."""
    return sql if sql.endswith("\\gset") else sql + ";"


class Tour:
    """Talks to the router with psql and by the line protocol, and to a shard as someone past the router would."""

    def __init__(self, cluster):
        self.cluster = cluster
        # Two accounts of each shard, by the product's own function.
        self.s0 = self.keys(parity=0)
        self.s1 = self.keys(parity=1)

    def keys(self, parity):
        _, text = self.cluster.instance("s0").psql(
            "SELECT k FROM generate_series(1::bigint, 100) k"
            f" WHERE interlock.bucket_of('accounts', k) % 2 = {parity} ORDER BY k LIMIT 2", "app")
        return [int(word) for word in text.split()]

    def run(self):
        self.prepare()
        print(f"\n$ psql '{self.cluster.pg_conninfo}'")
        self.inserts()
        self.same_shard_transfer()
        self.cross_shard_transfer()
        self.where_it_goes()
        self.refusals()
        self.pages()
        with LineClient("127.0.0.1", self.cluster.line_port) as self.client:
            self.line_protocol()
        self.wrong_shard()

    def prepare(self):
        """Takes away what an earlier tour left, so that this one's answers are the same."""
        for name, keys in (("s0", self.s0), ("s1", self.s1)):
            self.cluster.instance(name).psql(
                f"DELETE FROM account WHERE account_id IN ({keys[0]}, {keys[1]})", "app", "app")

    # -- showing ---------------------------------------------------------------------------------

    def title(self, text):
        print(f"\n-- {text}")

    def psql(self, *steps):
        """One session of psql through the router: (expected SQLSTATE, statement) after another."""
        script = "\\set VERBOSITY default\n" + "".join(f"{ended(sql)}\n\\echo @@ :SQLSTATE\n" for _, sql in steps)
        text = self.cluster.psql(script)
        for expected, sql in steps:
            said, mark, text = text.partition("@@ ")
            state, _, text = text.partition("\n")
            print(f"   > {ended(sql)}")
            for line in said.strip("\n").splitlines():
                print(f"   < {line}")
            if not mark or state != expected:
                raise InstanceError(f"the tour expected {expected} here, not {state or 'the end of psql'}")

    def ask(self, expected, sql, *params):
        """Sends, prints and checks a line: `expected` is OK or the code the answer must have."""
        shown = ", ".join(str(p) for p in params)
        self.show(expected, sql + (f"   [{shown}]" if params else ""), self.client.q(sql, *params))

    def show(self, expected, request, answer):
        print(f"   > {request}")
        print(f"   < {answer.raw}")
        if (answer.code or "OK") != expected:
            raise InstanceError(f"the tour expected {expected} here")

    # -- the stops -------------------------------------------------------------------------------

    def inserts(self):
        self.title("The shard key decides the shard")
        self.psql(*(("00000", f"INSERT INTO account VALUES ({key}, '{owner}', 100, 0)")
                    for key, owner in zip(self.s0 + self.s1, OWNERS)))

    def same_shard_transfer(self):
        one, two = self.s0
        self.title(f"A transfer between {one} and {two}, both on s0: one backend, one transaction")
        self.psql(("00000", "BEGIN"),
                  ("00000", f"UPDATE account SET balance = balance - 30 WHERE account_id = {one}"),
                  ("00000", f"UPDATE account SET balance = balance + 30 WHERE account_id = {two} RETURNING balance"),
                  ("00000", "COMMIT"))

    def cross_shard_transfer(self):
        here, there = self.s0[0], self.s1[0]
        self.title(f"A transfer from {here} on s0 to {there} on s1 is refused, and undone at once")
        self.psql(("00000", "BEGIN"),
                  ("00000", f"UPDATE account SET balance = balance - 30 WHERE account_id = {here}"),
                  ("IL012", f"UPDATE account SET balance = balance + 30 WHERE account_id = {there}"),
                  ("00000", "COMMIT"),
                  ("00000", f"SELECT balance FROM account WHERE account_id = {here}"))

    def where_it_goes(self):
        self.title("Where a statement goes, without running it")
        self.psql(("00000", "EXPLAIN ROUTE SELECT a.owner, b.owner FROM account a JOIN account b USING (account_id)"
                            f" WHERE a.account_id = {self.s1[0]}"))

    def refusals(self):
        key, other = self.s0[0], self.s1[0]
        self.title("What cannot be proven to be one shard's is refused, with the reason")
        self.psql(
            ("IL010", "DELETE FROM account"),
            ("IL010", f"SELECT * FROM account WHERE account_id = {key} OR balance > 0"),
            ("IL011", f"SELECT * FROM account WHERE account_id IN ({key}, {other})"),
            ("IL024", "DROP TABLE account"),
            ("IL025", "LISTEN news"),
            ("IL029", f"UPDATE account SET account_id = {other} WHERE account_id = {key}"),
            ("23514", f"UPDATE account SET balance = -1 WHERE account_id = {key}"),
        )

    def pages(self):
        self.title("All shards together: a page in order, the one after its last row's cursor, and a sum")
        page = "SELECT (item).account_id, (item).balance{} FROM interlock.keyset_page('richest', NULL::account, page_size => {})"
        self.psql(("00000", page.format(", cursor", 1) + " \\gset"),
                  ("00000", page.format("", "1")),
                  ("00000", page.format("", "3, after => :'cursor'")),
                  ("IL010", "SELECT count(*), sum(balance) FROM account"),
                  ("00000", "/* interlock: scatter */ SELECT count(*), sum(balance) FROM account"))

    def line_protocol(self):
        self.title("The line protocol, for scripts: a fixed grammar, and the shard, route version and backend of each answer")
        key, other = self.s0[0], self.s1[0]
        for expected, sql, *params in [
            ("OK", SELECT, key),
            ("OK", "BEGIN"),
            ("OK", DEBIT, 30, key),
            ("R12", CREDIT, 30, other),
            ("R13", "COMMIT"),
            ("OK", "ROLLBACK"),
            ("R28", f"SELECT * FROM account WHERE account_id = {key}"),
            ("R31", DEBIT, 1000000, key),
        ]:
            self.ask(expected, sql, *params)
        self.show("R02", "Q<TAB>SELECT%ZZ", parse_answer(self.client.ask("Q\tSELECT%ZZ")))

    def wrong_shard(self):
        key = self.s0[0]
        self.title(f"Past the router: account {key} belongs to s0, so s1 itself refuses it")
        sql = f"INSERT INTO account VALUES ({key}, 'eve', 100, 0);"
        print(f"   $ psql '{self.cluster.conninfo('s1', 'app')}' -v VERBOSITY=verbose")
        print(f"   > {sql}")
        status, text = self.cluster.instance("s1").psql("\\set VERBOSITY verbose\n" + sql, "app", "app", check=False)
        print("".join(f"   < {line}\n" for line in text.splitlines() if "LOCATION:" not in line), end="")
        if status == 0 or "IL101" not in text:
            raise InstanceError("the tour expected IL101 here")


def farewell(cluster):
    print(f"""
The cluster is up. Talk to it:
   the router   psql '{cluster.pg_conninfo}'   (or any other PostgreSQL client)
   for scripts  scripts/cluster ask 'SELECT * FROM account WHERE account_id = ?' 1
                scripts/cluster ask STATUS      (the line protocol, on 127.0.0.1:{cluster.line_port})
   shard s0     psql '{cluster.conninfo("s0", "app")}'   (the catalog is here too: schema interlock)
   shard s1     psql '{cluster.conninfo("s1", "app")}'
   files        {cluster.home.var}: interlock.ini, router.log, s0.log, s1.log
   the end      make down   (PURGE=1 deletes the data)""")
