"""The account that the embedded Postgres runs under. Postgres refuses root, and root is what containers give us."""

import os
import pwd
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

_CANDIDATES = ("postgres", "nobody")


class Account(Struct, frozen=True):
    name: str
    uid: int
    gid: int

    def spawn_args(self) -> Mapping[str, Any]:
        """Keyword arguments that make `subprocess` start a child under this account."""
        if self.uid == os.geteuid():
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        if path.stat().st_uid != self.uid:
            os.chown(path, self.uid, self.gid)

    def can_use(self, directory: Path) -> bool:
        """Whether this account may go through `directory`. Asked of the kernel, which knows about ACLs."""
        probe = ["/bin/sh", "-c", 'test -x "$1"', "sh", str(directory)]
        return subprocess.run(probe, check=False, cwd="/", **self.spawn_args()).returncode == 0  # noqa: S603


def current() -> Account:
    """The account of this process."""
    return Account(_name(os.geteuid()), os.geteuid(), os.getegid())


def choose(data: Path) -> Account:
    """Who runs the server for `data`: ourselves, or an unprivileged account when we are root; the owner of existing
    data comes first, so that starting once with sudo does not lock its user out."""
    us = current()
    if us.uid != 0:
        return us
    owner = data.stat() if data.exists() else None
    if owner is not None and owner.st_uid != 0:
        return Account(_name(owner.st_uid), owner.st_uid, owner.st_gid)
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise RuntimeError(
        "Postgres does not run as root, and this system has neither of the accounts 'postgres' and 'nobody'. "
        "Start Forebay as an ordinary user, or name a Postgres of your own in stores.postgres"
    )


def _name(uid: int) -> str:
    """An unnamed uid (arbitrary ones are usual in clusters) is named by its number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
