"""Stops a server whose holders are all gone, however they went: SIGKILL runs nobody's clean-up.

Run as a program of its own by `daemon`: `python -P guard.py USERS_FILE PID CREATED SIGNAL…`. It holds nothing, waits
for the lock that holders share, and ends with the server.
"""

import fcntl
import sys
import time
from pathlib import Path

import psutil

POLL = 0.2
PATIENCE = 20.0  # seconds for each signal


def main(users: Path, pid: int, created: float, signals: list[int]) -> None:
    with users.open("a") as file:
        while (server := _alive(pid, created)) is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(POLL)
                continue
            for number in signals:
                try:
                    server.send_signal(number)
                    server.wait(PATIENCE)
                except psutil.TimeoutExpired:
                    continue
                except psutil.NoSuchProcess:
                    pass
                return


def _alive(pid: int, created: float) -> psutil.Process | None:
    """The server, unless it has ended and its pid is somebody else's now."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - created) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return None
    return process if same else None


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), [int(number) for number in sys.argv[4:]])
