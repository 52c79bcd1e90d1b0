"""Becomes the command in its arguments, after asking the kernel to end it when its parent dies (Linux).

Arguments: the parent's pid, then the command. Run with `python -I -S`, which takes 10 ms. A parent that is SIGKILLed
can clean up nothing; this way its children get a SIGTERM all the same.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent = int(sys.argv[1])
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - not needed elsewhere

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it died before the request was made
        sys.exit(1)
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - the supervisor's own argument list


if __name__ == "__main__":
    main()
