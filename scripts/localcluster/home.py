"""Where the local cluster keeps its files, and what it remembers between runs."""

import fcntl
import hashlib
import json
import shutil
from pathlib import Path

MARKER = "interlock-local-cluster"


class Home:
    """`var` in the checkout, or, where the instances' user cannot enter the checkout, a folder of its
    own with symbolic links left in `var`. Ports and the router's pid are remembered in cluster.json."""

    def __init__(self, root: Path, owner):
        self.var = root / "var"
        self.var.mkdir(exist_ok=True)
        self.owner = owner
        self.place = self.var if owner.can_reach(self.var) else self.elsewhere(root)
        self.state_file = self.place / "cluster.json"
        self.state = {"ports": {}, "pg_port": None, "line_port": None, "router_pid": None}
        if self.state_file.exists():
            self.state.update(json.loads(self.state_file.read_text()))

    def elsewhere(self, root):
        digest = hashlib.sha256(str(root).encode()).hexdigest()[:10]
        for parent in (Path("/var/lib/postgresql"), Path("/var/lib")):
            if parent.is_dir() and self.owner.can_reach(parent):
                place = parent / f"interlock-{digest}"
                place.mkdir(mode=0o755, exist_ok=True)
                return place
        raise SystemExit(f"user {self.owner.name} can reach neither {self.var} nor /var/lib")

    def lock(self):
        """One `up` or `down` at a time."""
        self.lock_file = (self.var / ".lock").open("w")
        fcntl.flock(self.lock_file, fcntl.LOCK_EX)

    def path(self, name):
        """The real path of one of our files, with a link to it in `var` where that is another folder."""
        real = self.place / name
        if self.place != self.var:
            link = self.var / name
            if link.is_symlink() and link.readlink() != real:
                link.unlink()
            if not link.is_symlink() and not link.exists():
                link.symlink_to(real)
        return real

    def remember(self, **changes):
        self.state.update(changes)
        fresh = self.state_file.with_suffix(".new")
        fresh.write_text(json.dumps(self.state, indent=1) + "\n")
        fresh.rename(self.state_file)
        (self.place / MARKER).touch()

    def purge(self):
        """Deletes everything we made; nothing that does not bear our marker."""
        if (self.place / MARKER).exists() and self.place != self.var:
            shutil.rmtree(self.place)
        if self.place != self.var or (self.var / MARKER).exists():
            shutil.rmtree(self.var)
