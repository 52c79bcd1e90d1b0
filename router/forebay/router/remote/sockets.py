"""Where a router's socket lies, and who may use it: a directory of this account alone, one live process a path."""

import fcntl
import hashlib
import os
import socket
import tempfile
from pathlib import Path

_PATH_LIMIT = 100  # bytes of a socket's path, below the 104 and 108 of macOS and Linux
_BACKLOG = 128


class SocketInUseError(RuntimeError):
    """Another live process listens there."""


def private_path(directory: Path, name: str) -> Path:
    """`directory/name` if that is short enough for a socket, else one in the system's temporary directory that stays
    the same. The directory is created, and private to this account. Raises `OSError` where that cannot be."""
    directory = directory.absolute()
    if len(os.fsencode(directory / name)) > _PATH_LIMIT:
        mark = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
        directory = Path(tempfile.gettempdir()) / f"forebay-{os.geteuid()}-{mark}"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        directory.chmod(0o700)  # fails if it belongs to somebody else, as it should
    return directory / name


class Listener:
    """A listening socket at `path`. One that a dead process left there is replaced."""

    def __init__(self, path: Path) -> None:
        """Raises `SocketInUseError`, `OSError`."""
        self.path = path
        self._lock = _lock(path)
        try:
            path.unlink(missing_ok=True)
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.bind(str(path))
            self.socket.listen(_BACKLOG)
            self.socket.setblocking(False)
        except OSError as error:
            os.close(self._lock)
            raise OSError(error.errno, f"cannot listen at {path}: {error.strerror or error}") from error

    def close(self) -> None:
        """Nobody finds it any more. Call it after the server that accepts on it was closed."""
        self.path.unlink(missing_ok=True)
        self.socket.close()
        os.close(self._lock)


def _lock(path: Path) -> int:
    descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SocketInUseError(f"the router's socket {path} belongs to another running process") from None
    return descriptor
