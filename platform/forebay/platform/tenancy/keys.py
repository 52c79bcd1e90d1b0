"""How an API key is written: `sk-fb-<public id>-<secret><checksum>`, admin keys `sk-fb-admin-<public id>-…`.

The public id is 12 characters, the secret 43 (256 bits in base 62), the checksum 6 (CRC-32 of all before it). The
checksum keeps nobody out; it lets typing errors and garbage be refused without asking the database.
"""

import re
import secrets
import zlib
from typing import Literal

Kind = Literal["project", "admin"]

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_START: dict[Kind, str] = {"project": "sk-fb-", "admin": "sk-fb-admin-"}
_SHAPE = re.compile(rb"(sk-fb-(?:admin-)?[0-9A-Za-z]{12})-[0-9A-Za-z]{43}([0-9A-Za-z]{6})")

_PUBLIC = re.compile(r"(sk-fb-(?:admin-)?[0-9A-Za-z]{12})(?:-.*)?")

_WITH_SECRET = re.compile(r"(sk-fb-(?:admin-)?[0-9A-Za-z]{12})-[0-9A-Za-z]+")

# Anything that could be a key of ours, for tests and log filters.
LOOKS_LIKE_A_KEY = re.compile(r"sk-fb-(?:admin-)?[0-9A-Za-z]{12}-[0-9A-Za-z]{20,}")


def generate(kind: Kind) -> tuple[str, str]:
    """(the key's text, the part of it that may be shown)"""
    prefix = _START[kind] + "".join(secrets.choice(_ALPHABET) for _ in range(12))
    body = f"{prefix}-{_base62(secrets.randbits(256), 43)}"
    return body + _checksum(body.encode()), prefix


def prefix_of(token: bytes) -> str | None:
    """The displayable prefix if `token` is written like a key of ours, else None."""
    match = _SHAPE.fullmatch(token)
    if match is None or _checksum(token[:-6]).encode() != match[2]:
        return None
    return match[1].decode()


def public_part(text: str) -> str | None:
    """The displayable prefix of a key that is given whole, in part (`sk-fb-x-…`), or already as the prefix."""
    match = _PUBLIC.fullmatch(text)
    return match[1] if match else None


def without_secrets(text: str) -> str:
    """`text` with each key of ours, even one that was cut short, reduced to what may be shown."""
    return _WITH_SECRET.sub(r"\1-…", text) if "sk-fb-" in text else text


def _checksum(body: bytes) -> str:
    return _base62(zlib.crc32(body), 6)


def _base62(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, 62)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
