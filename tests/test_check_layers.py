"""The check of the router's layers finds what it is for."""

import subprocess

import pytest

from support import ROOT

GOOD = {
    "base/fd.h": "#include <unistd.h>\n",
    "route/key.cpp": '#include "route/key.h"\n#include "placement.h"\n#include "base/fd.h"\n',
    "route/key.h": "",
    "session/session.cpp": '#include "base/fd.h"\n#include "route/key.h"\n',
    "main.cpp": '#include "session/session.h"\n#include "tools/apply.h"\n',
    "session/session.h": "",
    "tools/apply.h": '#include "session/session.h"\n',
}


def check(folder, files):
    for name, text in files.items():
        path = folder / "router" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return subprocess.run(["/usr/bin/python3", ROOT / "tests" / "check_layers.py", folder], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_a_tree_that_keeps_its_layers_passes(tmp_path):
    done = check(tmp_path, GOOD)
    assert done.returncode == 0 and f"{len(GOOD)} files, 0 faults" in done.stdout, done.stdout


@pytest.mark.parametrize("name, text", [
    ("base/fd.h", '#include "route/key.h"\n'),                 # upwards
    ("route/key.h", '  #  include   "session/session.h"\n'),   # upwards, oddly spaced
    ("base/fd.h", '#include "placement.h"\n'),                 # the shared header, from too far below
    ("session/session.h", '#include "session.h"\n'),           # without its layer
    ("session/session.h", '#include "../route/key.h"\n'),      # around the rule
    ("session/session.h", "#include <tools/apply.h>\n"),       # with the wrong quotes
    ("session/session.h", '#include "route/absent.h"\n'),      # nothing there
    ("extra/new.cpp", ""),                                     # a folder that is no layer
    ("loose.cpp", ""),                                         # a file outside the layers
    ("base/deep/new.h", ""),                                   # a folder in a layer
], ids=lambda value: value.strip() or "empty")
def test_each_way_around_the_layers_is_found(tmp_path, name, text):
    done = check(tmp_path, {**GOOD, name: text})
    assert done.returncode == 1 and f"router/{name}" in done.stdout, done.stdout


def test_an_empty_tree_is_not_taken_for_a_good_one(tmp_path):
    assert check(tmp_path, {}).returncode == 1
