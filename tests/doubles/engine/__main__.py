"""`python -m tests.doubles.engine --port N`: one double in a process of its own. Every setting is an option."""

import argparse
import asyncio
import signal
import sys
import types
import typing
from typing import Any

import msgspec

try:
    import uvloop
except ImportError:
    uvloop = None  # type: ignore[assignment]

from tests.doubles.engine.faults import Fault
from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings


def parse(arguments: list[str]) -> tuple[Settings, str, int]:
    """Settings, host and port from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.doubles.engine", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--faults", default="[]", help="JSON list, as POST /_double/faults takes it")
    hints = typing.get_type_hints(Settings)
    for field in msgspec.structs.fields(Settings):
        if field.name == "faults":
            continue
        flag = "--" + field.name.replace("_", "-")
        kind = hints[field.name]
        if kind is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=field.default)
        else:
            parser.add_argument(flag, type=_reader(kind), default=field.default)
    given = vars(parser.parse_args(arguments))
    host, port = given.pop("host"), given.pop("port")
    faults = tuple(msgspec.json.decode(given.pop("faults"), type=list[Fault]))
    return Settings(**given, faults=faults), host, port


def _reader(kind: Any) -> Any:
    """A parser of one option; "none" is None where the setting may be None."""
    if isinstance(kind, types.UnionType):
        base = next(each for each in kind.__args__ if each is not type(None))
        return lambda text: None if text == "none" else base(text)
    return kind


async def serve(settings: Settings, host: str, port: int) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with EngineDouble(settings, host=host, port=port) as engine:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        print(f"engine double on {engine.url}", flush=True)
        await stopping.wait()
        await engine.drain()
        await asyncio.sleep(0.05)


def main() -> None:
    settings, host, port = parse(sys.argv[1:])
    run = asyncio.run if uvloop is None else uvloop.run
    run(serve(settings, host, port))


if __name__ == "__main__":
    main()
