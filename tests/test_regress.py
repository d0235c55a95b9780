"""The extension's pg_regress topics, on an instance of their own."""

import os
import subprocess

from support import ROOT


def test_pg_regress_topics(make_instance):
    server = make_instance(extension=False)
    environment = {**server.owner.environment(), "PGHOST": "127.0.0.1", "PGPORT": str(server.port),
                   "PGUSER": "postgres", "PG_CONFIG": str(server.bin / "pg_config"),
                   "PATH": os.environ["PATH"]}
    done = subprocess.run(["make", "-C", ROOT / "extension", "installcheck",
                           f"PG_CONFIG={server.bin / 'pg_config'}"],
                          env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    differences = "".join(path.read_text() for path in (ROOT / "build" / "regress").glob("regression.diffs"))
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{differences[:20000]}"
    topics = len(list((ROOT / "sql").glob("*.sql")))
    assert topics > 0 and f"All {topics} tests passed" in done.stdout, done.stdout
