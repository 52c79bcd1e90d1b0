"""Reports as they travel: a MessagePack array that begins with its version, on a channel of the deployment's own."""

import hashlib
import hmac

import msgspec
from msgspec import Struct

from forebay.platform.config.model import Config
from forebay.platform.config.secrets import secrets_of
from forebay.router import Report

VERSION = 1
SIZE_LIMIT = 2 << 20  # bytes; a report of 4,096 endpoints has less


class _Message(Struct, frozen=True, array_like=True):
    version: int
    report: Report


class _Head(Struct, frozen=True, array_like=True):
    version: int


class WireError(ValueError):
    """What came is no report. The message says why, in a few words that do not come from the sender."""


_message = msgspec.msgpack.Decoder(_Message).decode
_head = msgspec.msgpack.Decoder(_Head).decode


def channel_of(config: Config) -> str:
    """Where the front doors of this deployment tell each other: those who share the secret behind prefix keys. Others
    on the same Valkey, whose pools may have the same names, have other channels."""
    return f"{deployment(config)}:load"


def deployment(config: Config) -> str:
    """What the names of all that is this deployment's in Valkey begin with."""
    secret = secrets_of(config, "cache-salt")[0][1]
    return f"forebay:{hmac.new(secret, b'forebay deployment v1', hashlib.sha256).hexdigest()[:16]}"


def encoded(report: Report) -> bytes:
    return msgspec.msgpack.encode(_Message(VERSION, report))


def decoded(data: object) -> Report:
    """Raises `WireError`."""
    if not isinstance(data, bytes) or len(data) > SIZE_LIMIT:
        raise WireError("too large")
    try:
        version = _head(data).version
        if version == VERSION:
            return _message(data).report
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise WireError("garbage") from None
    raise WireError("of another version")
