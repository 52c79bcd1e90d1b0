"""Keys are stored as HMAC-SHA256 under a pepper that is not in the database: a stolen table opens nothing.

A pepper is rotated by putting a new one first. Keys hashed under the old one are still recognised, and hashed anew as
they are used; when `api_keys.pepper_id` no longer names the old pepper, it can go.
"""

import hmac
from collections.abc import Sequence


class Hasher:
    """Peppers are (id, secret), newest first; the secrets never show in its repr."""

    def __init__(self, peppers: Sequence[tuple[str, bytes]]) -> None:
        if not peppers:
            raise ValueError("at least one key-hashing secret is needed")
        if any(len(secret) < 32 for _, secret in peppers):
            raise ValueError("a key-hashing secret has at least 32 bytes")
        self._peppers = dict(peppers)
        if len(self._peppers) != len(peppers):
            raise ValueError("two key-hashing secrets have the same id")
        self.newest = peppers[0][0]

    def __repr__(self) -> str:
        return f"<Hasher {', '.join(self._peppers)}>"

    def hash(self, token: bytes) -> tuple[str, bytes]:
        """(id of the newest pepper, the hash of `token` under it)"""
        return self.newest, hmac.digest(self._peppers[self.newest], token, "sha256")

    def matches(self, token: bytes, pepper_id: str, stored: bytes) -> bool:
        """Whether `stored` is the hash of `token` under that pepper; false for a pepper that is gone."""
        pepper = self._peppers.get(pepper_id)
        return pepper is not None and hmac.compare_digest(hmac.digest(pepper, token, "sha256"), stored)
