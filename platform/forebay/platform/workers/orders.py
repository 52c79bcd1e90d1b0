"""What a worker is told when it starts, and what it says of itself, over its standard input and output.

Standard input stays open until the worker shall end at once, or the process that started it has. Orders hold passwords,
so they are on no command line and in no environment.
"""

from typing import BinaryIO

import msgspec
from msgspec import Struct

from forebay.platform.config.model import Config

LINE_LIMIT = 16 << 20  # bytes
READY = b"ready"
FAULT = b"fault "


class OrdersError(RuntimeError):
    """It was started by hand."""


class Orders(Struct, frozen=True):
    """`listener` is the descriptor of a bound socket, `router` the path of the router's."""

    worker: int
    of: int
    config: Config
    postgres_url: str
    valkey_url: str
    listener: int
    router: str
    log_level: int

    @property
    def name(self) -> str:
        return str(self.worker)

    def line(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"


def read(source: BinaryIO) -> Orders:
    """Raises `OrdersError`."""
    try:
        return msgspec.json.decode(source.readline(LINE_LIMIT), type=Orders)
    except msgspec.DecodeError:
        raise OrdersError("workers are started by `forebay serve`, with server.workers above 1") from None


def fault(error: BaseException) -> bytes:
    """One line that says why a worker cannot serve."""
    return FAULT + " ".join(str(error).split()).encode("utf-8", "replace")[:4000]
