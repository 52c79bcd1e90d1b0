"""Runs a command to its end, with its output in a log and its newest line in the progress."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from forebay.platform.local.progress import Step

TAIL = 12  # lines of the log shown when a command fails


class LocalError(Exception):
    """Something on this machine is in the way. The message says what, and what mends it."""


async def run(
    argv: Sequence[str],
    *,
    log: Path,
    step: Step,
    env: Mapping[str, str] | None = None,
    shorten: Callable[[str], str | None] = lambda line: line,
) -> None:
    """Raises `LocalError` with the log's path and last lines if the command fails. Cancelled: the command is killed
    with all its children. `shorten` makes a progress detail of an output line, or None to keep the last one."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        sink.write(f"\n$ {' '.join(argv)}\n".encode())
        sink.flush()
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=dict(env) if env is not None else None,
            start_new_session=True,
            limit=1 << 20,
        )
        try:
            assert process.stdout is not None
            async for raw in process.stdout:
                sink.write(raw)
                detail = shorten(raw.decode("utf-8", "replace").strip())
                if detail:
                    step.detail = detail
            code = await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await asyncio.shield(process.wait())
    if code != 0:
        raise LocalError(f"{step.doing} failed (exit status {code}).\n{tail(log)}\nThe whole log: {log}")


def tail(log: Path, lines: int = TAIL) -> str:
    """The last lines of a log, indented, at most 8 KiB of it."""
    try:
        with log.open("rb") as source:
            source.seek(max(0, log.stat().st_size - 8192))
            text = source.read().decode("utf-8", "replace")
    except OSError:
        return "    (no log)"
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])
