"""pgJDBC on a plain server and through the router."""

import shutil
import subprocess

import pytest

from support import ROOT
from support.drivers import FOLDER, Program

JAR = "/usr/share/java/postgresql.jar"
CLASSES = ROOT / "build" / "java"
SOURCES = sorted(FOLDER.glob("java/*.java"))
# One virtual machine for all checks, told to start fast.
JDBC = Program(["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m", "-cp", f"{JAR}:{CLASSES}", "drivers.Main"],
               *SOURCES, deadline=60)


@pytest.fixture(scope="module", autouse=True)
def classes():
    shutil.rmtree(CLASSES, ignore_errors=True)
    done = subprocess.run(["javac", "-Xlint:all", "-Werror", "-encoding", "UTF-8", "-cp", JAR, "-d", CLASSES, *SOURCES],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        pytest.fail(done.stdout, pytrace=False)


@pytest.mark.parametrize("way, check", JDBC.cases())
def test_pgjdbc(drivers, way, check):
    drivers.judge(JDBC, way, check)
