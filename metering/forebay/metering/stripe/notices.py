"""Webhooks of Stripe: who sends them, and what is kept of them.

A notice is thin: it says that there is a report, which is read from Stripe's API afterwards.
"""

import hashlib
import hmac
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

TOLERANCE_S = 300.0
_LONGEST = 255


class ForgedError(ValueError):
    """A body that none of the secrets has signed, or not now. The message may be shown."""


class Notice(msgspec.Struct, frozen=True):
    """Of a thin event, or of one that carries a snapshot."""

    id: str
    type: str
    object: str


def opened(body: bytes, signature: str, secrets: Sequence[str], now: datetime) -> Notice:
    """The notice in a signed body. Raises `ForgedError`, or `msgspec.DecodeError` where a signed body is no event."""
    at, given = _parts(signature)
    signed = b"%d." % at + body
    expected = [hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest() for secret in secrets]
    if not any(hmac.compare_digest(one, other) for one in expected for other in given):
        raise ForgedError("No signature of the Stripe-Signature header fits the body.")
    if abs(now.timestamp() - at) > TOLERANCE_S:
        raise ForgedError(f"The webhook was signed more than {TOLERANCE_S:.0f} seconds ago, or in the future.")
    notice = msgspec.json.decode(body, type=Notice)
    if not notice.id or len(notice.id) > _LONGEST or len(notice.type) > _LONGEST:
        raise msgspec.ValidationError("id or type is empty or too long")
    return notice


def _parts(header: str) -> tuple[int, list[str]]:
    """The time and the signatures of scheme v1."""
    parts: list[Any] = [part.strip().partition("=") for part in header.split(",")]
    times = [value for name, _, value in parts if name == "t"]
    signatures = [value for name, _, value in parts if name == "v1" and value.isascii()]
    if not times or not (times[0].isascii() and times[0].isdigit()) or len(times[0]) > 12 or not signatures:
        raise ForgedError("The header Stripe-Signature is missing, or is not t=…,v1=….")
    return int(times[0]), signatures
