"""Who runs PostgreSQL here: ourselves, or, when we are root, an unprivileged user."""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Owner:
    """The user that instances run as. `switch` says whether that takes a change of user."""

    name: str
    uid: int
    gid: int
    home: str
    switch: bool

    def argv(self, argv, die_with_parent=None):
        """`argv` as this user. `die_with_parent` names the signal it gets when its parent dies."""
        prefix = []
        if self.switch:
            prefix += [f"--reuid={self.uid}", f"--regid={self.gid}", "--init-groups"]
        if die_with_parent:
            prefix += ["--pdeathsig", die_with_parent]
        return (["setpriv", *prefix, "--"] if prefix else []) + [str(word) for word in argv]

    def environment(self):
        """Our environment without what would redirect libpq or hide the user's home."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
        kept.update(HOME=self.home, LC_ALL="C.UTF-8")
        return kept

    def can_reach(self, folder: Path):
        """Whether this user may enter `folder`: the right to traverse it and every folder above."""
        for place in [folder, *folder.parents]:
            state = place.stat()
            if state.st_uid == self.uid:
                allowed = state.st_mode & 0o100
            elif state.st_gid == self.gid:
                allowed = state.st_mode & 0o010
            else:
                allowed = state.st_mode & 0o001
            if not allowed:
                return False
        return True

    def own(self, path: Path):
        """Gives `path` (made by us) to this user."""
        if self.switch:
            os.chown(path, self.uid, self.gid)


def instance_owner():
    """The user for instances: `postgres`, else `nobody`, when we are root (initdb refuses root)."""
    if os.getuid() != 0:
        me = pwd.getpwuid(os.getuid())
        return Owner(me.pw_name, me.pw_uid, me.pw_gid, me.pw_dir, switch=False)
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Owner(name, entry.pw_uid, entry.pw_gid, entry.pw_dir, switch=True)
    raise SystemExit("root cannot run PostgreSQL, and there is no user `postgres` or `nobody`")
