#!/usr/bin/python3
"""Each folder of router/ includes only itself and the layers below it. Also reports long files.

    base < wire < route < sql < plan < server < session < tools < main.cpp

A header of the project is included as "layer/name.h"; the one exception is "placement.h", which the
extension shares and the layers from route upwards may use. Exits 1 when a rule is broken.

    check_layers.py          this checkout
    check_layers.py FOLDER   another one
"""

import re
import sys
from pathlib import Path

ROOT = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
LAYERS = ["base", "wire", "route", "sql", "plan", "server", "session", "tools"]
SHARED = {"placement.h": "route"}
LONG = 500  # lines: more makes one wonder whether it is still one concept
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')


def rank(layer):
    return len(LAYERS) if layer == "main" else LAYERS.index(layer)


def layer_of(path):
    """The layer of a file below router/, or None when it lies in no known folder."""
    parts = path.relative_to(ROOT / "router").parts
    if len(parts) == 1:
        return "main" if parts[0] == "main.cpp" else None
    return parts[0] if parts[0] in LAYERS and len(parts) == 2 else None


def faults_in(path):
    layer = layer_of(path)
    if layer is None:
        yield f"{path.relative_to(ROOT)}: not in a layer ({', '.join(LAYERS)})"
        return
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = INCLUDE.match(line)
        if not found:
            continue
        quote, name = found.groups()
        where = f"{path.relative_to(ROOT)}:{number}: "
        target = SHARED.get(name) or name.partition("/")[0]
        if quote == "<":
            if "/" in name and target in LAYERS and (ROOT / "router" / name).exists():
                yield where + f'<{name}> is ours: write "{name}"'
        elif target not in LAYERS:
            yield where + f'"{name}" is not written as "layer/name.h"'
        elif name not in SHARED and not (ROOT / "router" / name).exists():
            yield where + f'"{name}" does not exist'
        elif rank(target) > rank(layer):
            yield where + f'{layer} must not include {target} ("{name}"): it lies above'


def main():
    files = sorted(path for path in (ROOT / "router").rglob("*") if path.suffix in (".cpp", ".h"))
    faults = [fault for path in files for fault in faults_in(path)]
    for fault in faults:
        print(fault)
    if not files:
        print("there is no source below router/")
        return 1
    sources = [path for folder in ("router", "extension", "tests", "scripts") for path in
               (ROOT / folder).rglob("*") if path.suffix in (".cpp", ".h", ".py", ".sql")]
    for path in sorted(sources):
        lines = len(path.read_text(errors="replace").splitlines())
        if lines > LONG and path.name != "interlock--0.1.sql":
            print(f"note: {path.relative_to(ROOT)} has {lines} lines")
    print(f"layers: {len(files)} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
