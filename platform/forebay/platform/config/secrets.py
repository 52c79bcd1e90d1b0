"""Files of secrets: one a line as `id:base64`, newest first. No error says anything of what they hold.

The first secret is used for what is new; the others still recognise what is old.
"""

import base64
import binascii
import fcntl
import hashlib
import hmac
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from forebay.platform.config.faults import ConfigError, Fault
from forebay.platform.config.model import Config

Kind = Literal["key-hash", "cache-salt"]
SECRET_BYTES = 32  # at least
SIZE_LIMIT = 64 << 10
_MAKE = "make one with: openssl rand -base64 32"
_WRITABLE = "give Forebay a directory that it may write"
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class SecretsError(ConfigError):
    """A file of secrets that cannot be used."""

    def __init__(self, path: Path, problem: str, fix: str, *, line: int = 0) -> None:
        super().__init__([Fault(str(path), line, "", problem, fix)])


def secret_path(config: Config, kind: Kind) -> Path:
    """Where the secrets of a kind live: as configured, else under stateDir."""
    named = config.secrets.key_hash if kind == "key-hash" else config.secrets.cache_salt
    return Path(named) if named else Path(config.stores.state_dir) / "secrets" / kind


def secrets_of(config: Config, kind: Kind) -> list[tuple[str, bytes]]:
    """The secrets of a kind as (id, secret), newest first. A file that the configuration names must exist; one under
    stateDir is created when missing. Raises SecretsError."""
    named = config.secrets.key_hash if kind == "key-hash" else config.secrets.cache_salt
    path = secret_path(config, kind)
    return load_secrets(path) if named else ensure_secrets(path)


def cache_salt(secret: bytes, project_id: str) -> str:
    """The salt of a project's prefix cache: 64 hex digits, so that it passes where engines forbid `@ / \\` and NUL."""
    return hmac.new(secret, b"forebay cache salt v1\0" + project_id.encode(), hashlib.sha256).hexdigest()


def load_secrets(path: Path) -> list[tuple[str, bytes]]:
    """(id, secret) of each line, newest first. Raises SecretsError."""
    return _parse(_read(path), path)


def load_lines(path: Path, prefixes: tuple[str, ...]) -> list[str]:
    """The lines of a file of somebody else's secrets, each of which begins with one of `prefixes`. Raises
    SecretsError."""
    lines = [line.strip() for line in _read(path).splitlines()]
    found = [line for line in lines if line and not line.startswith("#")]
    if not found or not all(line.startswith(prefixes) and line.isprintable() for line in found):
        wanted = " or ".join(f"{prefix}…" for prefix in prefixes)
        raise SecretsError(path, "does not hold what belongs there", f"write {wanted} on a line of its own")
    return found


def ensure_secrets(path: Path) -> list[tuple[str, bytes]]:
    """The secrets in `path`, which is created with one of them if it does not exist. Processes that start together
    agree on one. Raises SecretsError."""
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _written_beside(path, _new_line()) as fresh, suppress(FileExistsError):
                # A link appears whole or not at all, and never replaces what another process has linked first.
                os.link(fresh, path)
    except OSError as error:
        raise SecretsError(path, f"cannot be created: {error.strerror}", _WRITABLE) from None
    return load_secrets(path)


def rotate_secrets(path: Path) -> str:
    """Put a new secret before the others and return its id. Raises SecretsError, and then changes nothing."""
    path = path.resolve()
    try:
        with _locked(path.parent):
            text = _read(path)
            _parse(text, path)
            line = _new_line()
            with _written_beside(path, f"{line}{text}") as fresh:
                _parse(_read(fresh), path)
                fresh.replace(path)
    except OSError as error:
        raise SecretsError(path, f"cannot be rotated: {error.strerror}", _WRITABLE) from None
    return line.partition(":")[0]


def _new_line() -> str:
    return f"s_{os.urandom(6).hex()}:{base64.b64encode(os.urandom(SECRET_BYTES)).decode()}\n"


def _parse(text: str, path: Path) -> list[tuple[str, bytes]]:
    secrets: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, encoded = line.strip().partition(":")
        if not colon or not _ID.fullmatch(name):
            fix = "write id:base64, with an id of letters, digits, _ and -"
            raise SecretsError(path, "is no secret", fix, line=number)
        if name in secrets:
            raise SecretsError(path, "has the id of a line above it", "give each secret an id of its own", line=number)
        try:
            secrets[name] = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            raise SecretsError(path, "what follows the id is not base64", _MAKE, line=number) from None
        if len(secrets[name]) < SECRET_BYTES:
            raise SecretsError(path, f"is shorter than {SECRET_BYTES} bytes", _MAKE, line=number)
    if not secrets:
        raise SecretsError(path, "holds no secret", "write one a line as id:base64, newest first")
    return list(secrets.items())


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise SecretsError(path, "is not a file", "name a file of secrets")
            if too_open(info):
                raise SecretsError(path, "can be read by others", f"run: chmod 600 {path}")
            raw = file.read(SIZE_LIMIT + 1)
    except OSError as error:
        fix = "name a file of secrets that Forebay may read"
        raise SecretsError(path, f"cannot be read: {error.strerror}", fix) from None
    if len(raw) > SIZE_LIMIT:
        raise SecretsError(path, f"is larger than {SIZE_LIMIT} bytes", "remove its oldest secrets")
    try:
        return raw.decode("ascii")
    except UnicodeDecodeError:
        raise SecretsError(path, "holds characters other than ASCII", "write ids in ASCII letters") from None


def too_open(info: os.stat_result) -> bool:
    """Whether others could read or change a file of secrets. Group access is fine where the file is someone else's and
    not writable: so Kubernetes mounts secrets (fsGroup), and this process could not read it otherwise."""
    shared = stat.S_IRWXO if info.st_uid != os.geteuid() else stat.S_IRWXO | stat.S_IRWXG
    return bool(info.st_mode & (shared | stat.S_IWGRP))


@contextmanager
def _written_beside(path: Path, text: str) -> Iterator[Path]:
    """A private file of that text in the directory of `path`, durable when yielded, gone or renamed afterwards."""
    fresh = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    try:
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        yield fresh
    finally:
        fresh.unlink(missing_ok=True)
        _sync(path.parent)


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Holds off every other rotation in a directory. Rotating takes milliseconds, so waiting is short."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
