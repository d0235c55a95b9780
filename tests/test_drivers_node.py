"""node-postgres and postgres.js on a plain server and through the router."""

import filecmp
import shutil
import subprocess

import pytest

from support import ROOT
from support.drivers import FOLDER, Program

# The packages are named, with their hashes, in tests/drivers/node/package-lock.json.
INSTALLED = ROOT / "build" / "node"
ENVIRONMENT = {"NODE_PATH": str(INSTALLED / "node_modules")}
NODE_POSTGRES = Program(["node", "node/node_postgres.js"], "node/node_postgres.js", environment=ENVIRONMENT)
POSTGRES_JS = Program(["node", "node/postgres_js.js"], "node/postgres_js.js", environment=ENVIRONMENT)


@pytest.fixture(scope="module", autouse=True)
def packages():
    """npm installs what the lock file names, once for every state of it."""
    lock = FOLDER / "node" / "package-lock.json"
    installed = INSTALLED / "package-lock.json"
    if installed.exists() and filecmp.cmp(lock, installed, shallow=False):
        return
    fresh = INSTALLED.with_name("node.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(FOLDER / "node" / name, fresh)
    done = subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=fresh, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    if done.returncode != 0:
        pytest.fail(f"npm ci exited {done.returncode}:\n{done.stdout}", pytrace=False)
    shutil.rmtree(INSTALLED, ignore_errors=True)
    fresh.rename(INSTALLED)


@pytest.mark.parametrize("way, check", NODE_POSTGRES.cases())
def test_node_postgres(drivers, way, check):
    drivers.judge(NODE_POSTGRES, way, check)


@pytest.mark.parametrize("way, check", POSTGRES_JS.cases())
def test_postgres_js(drivers, way, check):
    drivers.judge(POSTGRES_JS, way, check)
