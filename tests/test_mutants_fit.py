"""Mutants that no longer fit the code show nothing, and nobody runs them often enough to notice."""

import subprocess

import pytest

from support import ROOT

PROGRAMS = sorted(path.name for path in (ROOT / "tests").glob("mutants*.py"))


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_mutant_changes_one_place_of_the_code(program):
    done = subprocess.run(["/usr/bin/python3", "-B", f"tests/{program}", "--check"], cwd=ROOT, text=True, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
