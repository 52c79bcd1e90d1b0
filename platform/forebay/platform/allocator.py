"""How the C library's allocator keeps what is given back: a front door that has read huge bodies shall shrink again."""

import contextlib
import ctypes

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # <malloc.h>
LARGE = 1 << 20  # bytes of a block that goes back to the system when it is freed
ARENAS = 4  # heaps that threads may have between them; each keeps its own holes


def settle() -> None:
    """Left to itself glibc keeps blocks of up to 32 MiB once it has seen one freed, in up to eight heaps a core. Other
    C libraries have no such call, and are left as they are."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, LARGE)
        mallopt(_M_ARENA_MAX, ARENAS)
