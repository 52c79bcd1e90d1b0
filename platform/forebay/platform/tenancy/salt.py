"""Prefix-cache isolation: each project's salt, so that no tenant can time what others have sent."""

from functools import lru_cache

from forebay.platform.config.secrets import cache_salt


class Salter:
    """Derives and remembers salts from one secret."""

    def __init__(self, secret: bytes) -> None:
        self.salt = lru_cache(maxsize=65_536)(lambda project_id: cache_salt(secret, project_id))
