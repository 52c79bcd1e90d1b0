"""Which session a request belongs to, by what its client says (pure): advice for its placement, never a right.

Agent clients name their session in a header of their own. Claude Code's and Codex's sub-agents send that of the session
which started them; OpenCode's send one of their own, and beside it that of the session which started them.
"""

import hashlib
import re
from collections.abc import Mapping

from msgspec import Struct

HEADERS = (  # the first that is there names the session
    "x-forebay-session-id",
    "x-claude-code-session-id",
    "x-session-affinity",  # OpenCode
    "session-id",  # Codex
    "session_id",
)
PARENTS = {"x-session-affinity": b"x-parent-session-id"}  # what a sub-agent sends beside a header, of the same kind
MEMBER = "prompt_cache_key"
MAX_VALUE = 256  # bytes of a header; a longer one names nothing
_SOURCES = tuple((name.encode(), name) for name in HEADERS)
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")


class Session(Struct, frozen=True):
    """`key` is 32 hex digits, the same for the same value of the same source in the same project, and for no other.
    `source` is the header or member that named it. Both are empty where nothing did."""

    key: str = ""
    source: str = ""


UNNAMED = Session()


def named_session(project: str, headers: Mapping[bytes, bytes], cache_key: str = "") -> Session:
    """`headers` with names in lower case; `cache_key` is the body's `prompt_cache_key`. A header that cannot be meant
    (empty, too long, with control characters) is passed over."""
    for header, name in _SOURCES:
        if header in headers and (value := _meant(headers, header)):
            parent = _meant(headers, PARENTS[name]) if name in PARENTS else b""
            return Session(_key(project, name, parent or value), name)
    if cache_key:
        return Session(_key(project, MEMBER, cache_key.encode("utf-8", "surrogatepass")), MEMBER)
    return UNNAMED


def _meant(headers: Mapping[bytes, bytes], name: bytes) -> bytes:
    value = headers.get(name, b"")
    return value if len(value) <= MAX_VALUE and not _CONTROL.search(value) else b""


def _key(project: str, source: str, value: bytes) -> str:
    """Neither ids of projects nor names of sources hold a zero byte, so the three cannot run into each other."""
    return hashlib.blake2b(f"{project}\0{source}\0".encode() + value, digest_size=16).hexdigest()
