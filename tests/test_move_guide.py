"""The walk-throughs of docs/moving.md, run as they stand there, while clients write and read."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from support import ROOT, settled
from support.moving import SETTINGS, MovingCluster
from support.postgres import Postgres
from support.router import BINARY, environment

DOCUMENT = (ROOT / "docs" / "moving.md").read_text()


def commands(section):
    """The lines of a section that begin with $, each with the answer that is printed below it."""
    text = re.search(rf"^## {re.escape(section)}$(.*?)(?=^## |\Z)", DOCUMENT, re.S | re.M).group(1)
    found = []
    for line in text.splitlines():
        if line.startswith("    $ "):
            found.append((line[6:], []))
        elif line.startswith("    ") and found:
            found[-1][1].append(line[4:])
        elif found and found[-1][1]:
            found.append(("", []))  # an answer ends with its block
    return [(command, answer) for command, answer in found if command]


@pytest.fixture(scope="module")
def cluster(owner, new_folder, router_binary):
    cluster = MovingCluster(new_folder("move-guide"), owner)
    try:
        yield cluster.up()
        cluster.end_test()
    finally:
        cluster.down()


def add_server(cluster):
    """Step 1 of the walk-through: a server as the others are, with their roles."""
    server = Postgres(cluster.base, "s2", cluster.instances["s0"].owner, SETTINGS).start()
    cluster.instances["s2"] = server
    server.sql("CREATE ROLE app LOGIN; CREATE ROLE interlock_router LOGIN", dbname="postgres")
    return server


def run(cluster, command, folder, expect=0):
    """One line in a shell, with the variables of the document."""
    names = {"CATALOG": cluster.catalog.conninfo("app", "postgres"), "S0": cluster.instances["s0"].conninfo("app"),
             "S2": cluster.instances["s2"].conninfo("app"), "S2_SERVER": cluster.instances["s2"].conninfo("postgres", "postgres"),
             "PGUSER": "postgres", "PATH": f"{folder}:{cluster.catalog.bin}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], env=environment(names), cwd="/", text=True, capture_output=True, timeout=300)
    assert done.returncode == expect, f"{command} exited {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def folder(tmp_path):
    """A folder where the program has the name that the document calls it."""
    (tmp_path / "interlock").symlink_to(Path(BINARY).resolve())
    return tmp_path


def test_a_shard_is_added_to_a_running_cluster_and_emptied_again(cluster, folder):
    cluster.fill(moved=0, near=2, odd=1, stays=4)
    add_server(cluster)
    with cluster.load(4) as load:
        load.progress(3)
        outputs = [run(cluster, command, folder) for command, _ in commands("A new shard, step by step")]
        assert len(outputs) == 10
        cluster.shards.append("s2")
        routes = settled.routes(cluster)
        assert [bucket for bucket, shard in routes.items() if shard == "s2"] == [0, 1, 2, 3]
        # The commands that are printed for a person are commands.
        proposed = re.findall(r"interlock move .*--to s2\b.*", outputs[4])
        assert proposed, outputs[4]
        assert outputs[5].startswith("would move, of keyspace accounts from s0 to s2:\n")
        assert re.search(r"^ s2 +\| +4$", outputs[8], re.M), outputs[8]
        assert outputs[9] == "no move is unfinished\n"
        load.progress(3)
        for command, _ in commands("Emptying a shard"):
            run(cluster, command, folder)
        assert "s2" not in settled.routes(cluster).values()
        load.progress(3)
    load.history.check(cluster.rows())
    assert load.history.failures() == []
    cluster.assert_settled()


def test_a_move_says_what_the_document_shows(cluster, folder):
    if "s2" not in cluster.instances:
        add_server(cluster)
    (plan, _), (move, shown), _ = commands("Moving")
    assert plan == move + " --plan"
    cluster.fill(moved=4, near=2)
    move = move.replace("--bucket 5", "--bucket 4")
    said = run(cluster, move, folder)

    def shape(text):
        return re.sub(r"\d+ (MB|kB|B)\b|\d+\.\d+ (MB|kB)\b", "SIZE", re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", text))

    def words(text):
        return re.sub(r"\d+(\.\d+)?", "N", shape(text)).strip()
    assert words(said) == words("\n".join(shown))


def test_every_option_in_the_document_is_one_of_the_command(cluster, folder):
    if "s2" not in cluster.instances:
        add_server(cluster)
    known = set(re.findall(r"--[a-z][a-z-]*", run(cluster, "interlock move --help", folder)))
    named = set(re.findall(r"--[a-z][a-z-]*", DOCUMENT)) - {"--schema-only", "--by"}
    assert named <= known | {"--plan"}, named - known
    assert known - named <= {"--catalog", "--config", "--help", "--from", "--timeout", "--lock-timeout", "--scan-timeout", "--steps"}, known - named
