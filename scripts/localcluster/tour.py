"""The tour: requests, and the answers of a running cluster. Each answer is checked as it is shown."""

from .instance import InstanceError
from .line import LineClient, parse_answer

SELECT = "SELECT * FROM account WHERE account_id = ?"
INSERT = "INSERT INTO account (account_id, owner, balance, version) VALUES (?, ?, ?, ?)"
DEBIT = "UPDATE account SET balance = balance - ? WHERE account_id = ?"
CREDIT = "UPDATE account SET balance = balance + ? WHERE account_id = ?"
OWNERS = ("ann", "bob", "cem", "dora")


class Tour:
    """Talks to the router as any application would, and to a shard as someone with psql would."""

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
        with LineClient("127.0.0.1", self.cluster.line_port) as self.client:
            self.prepare()
            self.inserts()
            self.same_shard_transfer()
            self.cross_shard_transfer()
            self.refusals()
            self.wrong_shard()

    def prepare(self):
        """Takes away what an earlier tour left, so that this one's answers are the same."""
        for key in self.s0 + self.s1:
            answer = self.client.q("DELETE FROM account WHERE account_id = ?", key)
            if not answer.ok:
                raise InstanceError(f"the tour cannot begin: {answer.raw}")

    # -- showing ---------------------------------------------------------------------------------

    def title(self, text):
        print(f"\n-- {text}")

    def ask(self, expected, sql, *params):
        """Sends, prints and checks: `expected` is OK or the code the answer must have."""
        shown = ", ".join(str(p) for p in params)
        self.show(expected, sql + (f"   [{shown}]" if params else ""), self.client.q(sql, *params))

    def ask_raw(self, expected, line):
        """The same with a request line as it goes over the wire."""
        self.show(expected, line.replace("\t", "<TAB>"), parse_answer(self.client.ask(line)))

    def show(self, expected, request, answer):
        print(f"   > {request}")
        print(f"   < {answer.raw}")
        if (answer.code or "OK") != expected:
            raise InstanceError(f"the tour expected {expected} here")

    # -- the stops -------------------------------------------------------------------------------

    def inserts(self):
        self.title("The shard key decides the shard")
        for key, owner in zip(self.s0 + self.s1, OWNERS):
            self.ask("OK", INSERT, key, owner, 100, 0)

    def same_shard_transfer(self):
        self.title(f"A transfer between {self.s0[0]} and {self.s0[1]}, both on s0: one backend, one transaction")
        self.ask("OK", "BEGIN")
        self.ask("OK", DEBIT, 30, self.s0[0])
        self.ask("OK", CREDIT, 30, self.s0[1])
        self.ask("OK", "COMMIT")
        self.ask("OK", SELECT, self.s0[0])

    def cross_shard_transfer(self):
        self.title(f"A transfer from {self.s0[0]} on s0 to {self.s1[0]} on s1 is refused, and undone at once")
        self.ask("OK", "BEGIN")
        self.ask("OK", DEBIT, 30, self.s0[0])
        self.ask("R12", CREDIT, 30, self.s1[0])
        self.ask("R13", "COMMIT")
        self.ask("OK", "ROLLBACK")
        self.ask("OK", SELECT, self.s0[0])
        self.ask("OK", SELECT, self.s1[0])

    def refusals(self):
        key, other = self.s0[0], self.s1[0]
        self.title("What cannot be proven to be one shard's is refused, with the reason")
        for expected, sql, *params in [
            ("R01", f"{SELECT} ORDER BY account_id", key),
            ("R10", "DELETE FROM account"),
            ("R11", "SELECT * FROM account WHERE account_id IN (?, ?)", key, other),
            ("R20", "SELECT * FROM account, account WHERE account_id = ?", key),
            ("R21", "SELECT * FROM account WHERE account_id IN (SELECT account_id FROM account)"),
            ("R22", f"{SELECT}; DROP TABLE account", key),
            ("R23", f"{SELECT} -- only this one", key),
            ("R24", "DROP TABLE account"),
            ("R25", "SET statement_timeout = '1s'"),
            ("R26", "SELECT * FROM acount WHERE account_id = ?", key),
            ("R27", SELECT, "abc"),
            ("R28", f"SELECT * FROM account WHERE account_id = {key}"),
            ("R29", "UPDATE account SET account_id = ? WHERE account_id = ?", other, key),
            ("R31", DEBIT, 1000000, key),
        ]:
            self.ask(expected, sql, *params)
        self.ask_raw("R02", "Q\tSELECT%ZZ")
        self.ask("OK", "BEGIN")
        self.ask("R40", "BEGIN")
        self.ask("OK", "ROLLBACK")

    def wrong_shard(self):
        key = self.s0[0]
        self.title(f"psql, past the router: account {key} belongs to s0, so s1 itself refuses it")
        sql = f"INSERT INTO account VALUES ({key}, 'eve', 100, 0);"
        print(f"   $ psql '{self.cluster.conninfo('s1', 'app')}' -v VERBOSITY=verbose")
        print(f"   > {sql}")
        status, text = self.cluster.instance("s1").psql("\\set VERBOSITY verbose\n" + sql, "app", "app", check=False)
        print("".join(f"   < {line}\n" for line in text.splitlines() if "LOCATION:" not in line), end="")
        if status == 0 or "IL101" not in text:
            raise InstanceError("the tour expected IL101 here")


def farewell(cluster):
    port = cluster.line_port
    print(f"""
The cluster is up. Talk to it:
   scripts/cluster ask 'SELECT * FROM account WHERE account_id = ?' 1
   scripts/cluster ask STATUS
   the router   127.0.0.1:{port}, a request a line, fields separated by tabs and URL-encoded, e.g. in bash:
                exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'Q\\tSELECT %%2A FROM account WHERE account_id %%3D ?\\t1\\n' >&3; head -n1 <&3
   shard s0     psql '{cluster.conninfo("s0", "app")}'   (the catalog is here too: schema interlock)
   shard s1     psql '{cluster.conninfo("s1", "app")}'
   files        {cluster.home.var}: interlock.ini, router.log, s0.log, s1.log
   the end      make down   (PURGE=1 deletes the data)""")
