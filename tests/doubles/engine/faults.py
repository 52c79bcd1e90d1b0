"""What can be made to go wrong, and which fault takes a request. Pure: randomness comes from the set's own seed."""

from collections.abc import Iterable
from random import Random
from typing import Any, Literal

import msgspec

Kind = Literal[
    "status",  # answers `status` instead of working
    "close_before_headers",  # `rst`: reset instead of FIN, here and below
    "hang_before_headers",  # for `seconds`, then it answers as usual; without seconds, for ever
    "close_after_headers",
    "hang",  # after `after` events, for `seconds` or for ever
    "close",  # after `after` events
    "error_event",  # after `after` events: an error inside the 200 stream, then [DONE]
    "malformed_frame",  # after `after` events: one frame that is not JSON
    "invalid_utf8",  # after `after` events: one frame with bytes that are not UTF-8
    "large_frame",  # after `after` events: one frame with `size` characters of text
    "comment",  # after `after` events: a keep-alive comment line
    "split",  # the body leaves in pieces of `size` bytes; with `offset`, each frame is cut there (modulo its length)
    "crlf",  # frames end in CRLF CRLF
    "slow_reader",  # reads the next request's body only after `seconds`
    "wrong_content_length",  # of answers that are not streamed: off by `size`
    "usage_missing",
    "usage_zero",
    "done_missing",
    "refuse",  # stops listening for `seconds` (or until EngineDouble.listen); open connections stay
]
_PER_STREAM = frozenset({"error_event", "malformed_frame", "invalid_utf8", "large_frame", "comment"})


class Fault(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One thing that goes wrong. It takes a matching request with `probability`, at most `times` times."""

    kind: Kind
    path: str = "/v1/"
    """The request's path begins with this."""
    stream: bool | None = None
    """Only streamed (True) or only whole (False) answers."""
    model: str | None = None
    probability: float = 1.0
    times: int | None = None
    after: int = 1
    """Frames that are written before it happens; in a chat the first is the role's."""
    status: int = 500
    message: str | None = None
    retry_after: str | None = None
    seconds: float | None = None
    size: int = 1
    offset: int | None = None
    rst: bool = False

    def needs_body(self) -> bool:
        """Whether it can be chosen only when the body is known."""
        return self.stream is not None or self.model is not None

    def replaces_a_frame(self) -> bool:
        return self.kind in _PER_STREAM


_ONE_OR_MORE = list[Fault] | Fault


class FaultSet:
    """The faults in force, in order; the first that matches takes a request."""

    def __init__(self, faults: Iterable[Fault] = (), seed: int = 0) -> None:
        self.faults = [msgspec.structs.replace(fault) for fault in faults]
        self._random = Random(seed)

    def add(self, body: bytes) -> list[Fault]:
        """Add those in a JSON object or list. Raises msgspec.ValidationError."""
        given: Any = msgspec.json.decode(body, type=_ONE_OR_MORE)
        added = given if isinstance(given, list) else [given]
        self.faults += added
        return added

    def clear(self) -> None:
        self.faults.clear()

    def pick(self, path: str, *, stream: bool | None = None, model: str | None = None) -> Fault | None:
        for fault in self.faults:
            if not path.startswith(fault.path) or fault.kind in ("slow_reader", "refuse"):
                continue
            if fault.stream is not None and fault.stream is not stream:
                continue
            if fault.model is not None and fault.model != model:
                continue
            if self._takes(fault):
                return fault
        return None

    def pick_reader(self, path: str) -> Fault | None:
        """The fault that concerns how a body is read, chosen when only the headers are known."""
        for fault in self.faults:
            if fault.kind == "slow_reader" and path.startswith(fault.path) and self._takes(fault):
                return fault
        return None

    def _takes(self, fault: Fault) -> bool:
        if fault.times == 0 or (fault.probability < 1 and self._random.random() >= fault.probability):
            return False
        if fault.times is not None:
            fault.times -= 1
        return True
