"""From tokens to an answer on a connection, streamed or whole, with the fault that was chosen for it."""

import asyncio
import os
import re
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from tests.doubles.engine import frames
from tests.doubles.engine.errors import of_status
from tests.doubles.engine.faults import Fault
from tests.doubles.engine.generation import Job, Sequence
from tests.doubles.engine.protocol import Connection

_FLUSH_SECONDS = 0.02
_USAGE = re.compile(rb"^data: \{.*\"usage\":")

Drop = Callable[[list[Sequence]], None]


def call_id() -> str:
    return "chatcmpl-tool-" + os.urandom(8).hex()


class WholeAnswer:
    """An answer that is written when all its sequences have ended."""

    def __init__(self, connection: Connection, job: Job, sequences: list[Sequence], drop: Drop) -> None:
        self._connection = connection
        self._job = job
        self._sequences = sequences
        self._drop = drop
        self._open = len(sequences)
        self.fault: Fault | None = None
        self.created = 0
        self.model = ""
        self.details = True

    def lost(self) -> None:
        self._drop(self._sequences)

    def writable(self) -> None: ...

    def token(self, sequence: Sequence, text: bytes) -> None:
        if sequence.finish_reason is not None:
            self._open -= 1
            if not self._open:
                self._respond()

    aborted = token

    def _respond(self) -> None:
        usage = {"usage_zero": "zero", "usage_missing": "missing"}.get(self.fault.kind) if self.fault else None
        calls = [call_id() for _ in self._sequences] if self._job.tool else []
        body = frames.whole(
            self._job, self._sequences, self.model, self.created, details=self.details, usage=usage, call_ids=calls
        )
        length = None
        if self.fault is not None and self.fault.kind == "wrong_content_length":
            length = max(0, len(body) + self.fault.size)
        self._connection.respond(200, body, length=length)
        if length is not None:
            self._connection.cut(rst=False)


class StreamAnswer:
    """Frames as tokens come. While the client does not read, tokens gather and leave in one frame, as vLLM's do."""

    def __init__(
        self, connection: Connection, job: Job, sequences: list[Sequence], drop: Drop, made: frames.StreamFrames
    ) -> None:
        self._connection = connection
        self._write = connection.transport.write
        self._job = job
        self._sequences = sequences
        self._drop = drop
        self._frames = made
        self._open = len(sequences)
        self._first: Sequence | None = None
        self._held: dict[Sequence, list[bytes]] = {}
        self._faulty: FaultyWriter | None = None
        self._call_ids: dict[Sequence, bytes] = {}

    def begin(self, fault: Fault | None) -> None:
        if fault is not None:
            self._faulty = FaultyWriter(self._connection, fault, self._give_up)
        self._connection.begin_stream()

    def lost(self) -> None:
        if self._faulty is not None:
            self._faulty.stop()
        self._drop(self._sequences)

    def writable(self) -> None:
        held, self._held = self._held, {}
        for sequence, texts in held.items():
            self._emit(sequence, b"".join(texts), len(texts))

    def token(self, sequence: Sequence, text: bytes) -> None:
        if self._first is None:
            self._begin_with(sequence)
        if self._connection.paused:
            self._held.setdefault(sequence, []).append(text)
        else:
            self._emit(sequence, text, 1)

    def aborted(self, sequence: Sequence, text: bytes) -> None:
        if self._first is None:
            self._begin_with(sequence)
        held = self._held.pop(sequence, [])
        if sequence.generated:
            self._emit(sequence, b"".join(held), max(len(held), 1))
        else:
            self._end_one()

    def _begin_with(self, sequence: Sequence) -> None:
        self._first = sequence
        if self._job.chat:
            for role in self._frames.roles():
                self._send(role)

    def _emit(self, sequence: Sequence, text: bytes, count: int) -> None:
        if self._job.tool is not None and text + (b"" if sequence in self._call_ids else b"x"):
            known = sequence in self._call_ids
            if not known:
                self._call_ids[sequence] = call_id().encode()
            self._send(self._frames.tool_delta(sequence, text, None if known else self._call_ids[sequence]))
            if sequence.finish_reason is None:
                return
        self._send(self._frames.delta(sequence, text, count))
        if sequence.finish_reason is not None:
            self._end_one()

    def _end_one(self) -> None:
        self._open -= 1
        if self._open:
            return
        if self._job.usage:
            self._send(self._frames.usage(self._sequences, self._first))
        self._send(frames.DONE)
        self._finish()

    def _finish(self) -> None:
        if self._faulty is not None:
            self._faulty.end()
            return
        self._write(b"0\r\n\r\n")
        self._connection.finish()

    def _send(self, frame: bytes) -> None:
        if self._faulty is not None:
            self._faulty.send(frame)
        else:
            self._write(b"%x\r\n%b\r\n" % (len(frame), frame))

    def _give_up(self) -> None:
        """The fault ended the answer: nothing more is generated."""
        self._connection.answer = None
        self._drop(self._sequences)


class FaultyWriter:
    """Writes a stream's frames with one fault."""

    def __init__(self, connection: Connection, fault: Fault, give_up: Callable[[], None]) -> None:
        self._connection = connection
        self._fault = fault
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._pieces: deque[bytes] = deque()
        self._frames = 0
        self._stuck = False
        self._stopped = False
        self._pumping = False

    def stop(self) -> None:
        self._stopped = True
        self._pieces.clear()

    def send(self, frame: bytes) -> None:
        if self._stopped:
            return
        if self._frames == self._fault.after:
            self._happen()
        self._frames += 1
        changed = self._change(frame)
        if changed and not self._stopped:
            self._queue(changed)

    def end(self) -> None:
        if not self._stopped:
            self._pieces.append(b"")
            self._pump()

    def _happen(self) -> None:
        fault = self._fault
        kind = fault.kind
        if fault.replaces_a_frame():
            self._queue(_extra_frame(fault))
        if kind == "error_event":
            self._queue(frames.DONE)
            self.end()
            self._stopped = True
            self._give_up()
        elif kind == "hang":
            self._stuck = True
            if fault.seconds is not None:
                self._loop.call_later(fault.seconds, self._unstick)
        elif kind == "close":
            self._stopped = True
            self._give_up()
            # A reset drops what has not left yet.
            self._loop.call_later(_FLUSH_SECONDS, lambda: self._connection.cut(rst=fault.rst))

    def _change(self, frame: bytes) -> bytes:
        kind = self._fault.kind
        if kind == "crlf":
            return frame.replace(b"\n", b"\r\n")
        if kind == "done_missing" and frame == frames.DONE:
            return b""
        if kind in ("usage_missing", "usage_zero") and _USAGE.match(frame):
            return _without_usage(frame, zero=kind == "usage_zero")
        return frame

    def _queue(self, frame: bytes) -> None:
        fault = self._fault
        if fault.kind != "split":
            self._pieces.append(frame)
        elif fault.offset is not None:
            at = fault.offset % len(frame)
            self._pieces += [piece for piece in (frame[:at], frame[at:]) if piece]
        else:
            self._pieces += [frame[i : i + fault.size] for i in range(0, len(frame), fault.size)]
        self._pump()

    def _unstick(self) -> None:
        self._stuck = False
        self._pump()

    def _pump(self) -> None:
        """Write what is queued; split pieces one at a time, each in its own turn of the loop."""
        if self._pumping:
            return
        while self._pieces and not self._stuck:
            piece = self._pieces.popleft()
            if not piece:
                self._connection.transport.write(b"0\r\n\r\n")
                self._connection.finish()
                return
            self._connection.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            if self._fault.kind == "split" and self._pieces:
                self._pumping = True
                self._loop.call_soon(self._again)
                return

    def _again(self) -> None:
        self._pumping = False
        self._pump()


def _extra_frame(fault: Fault) -> bytes:
    if fault.kind == "error_event":
        return of_status(fault.status, fault.message).event()
    if fault.kind == "malformed_frame":
        return b'data: {"id":"chatcmpl-\n\n'
    if fault.kind == "comment":
        return b": keep-alive\n\n"
    text = b"x" * fault.size if fault.kind == "large_frame" else b"\xff\xfe\xc3"
    return (
        b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":0,"model":"double","choices":[{"index":0,'
        b'"delta":{"content":"%b"},"logprobs":null,"finish_reason":null}]}\n\n' % text
    )


def _without_usage(frame: bytes, *, zero: bool) -> bytes:
    """A frame less its usage, or with one of zeros. A frame that held nothing else is dropped."""
    event: dict[str, Any] = msgspec.json.decode(frame[6:])
    if zero:
        event["usage"] = {key: 0 if isinstance(value, int) else value for key, value in event["usage"].items()}
    else:
        del event["usage"]
        if not event["choices"]:
            return b""
    return b"data: " + msgspec.json.encode(event) + b"\n\n"
