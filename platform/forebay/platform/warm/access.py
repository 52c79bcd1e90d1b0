"""Who may read a router's snapshot: whoever knows the deployment's secret, as its peers do."""

import hashlib
import hmac

from forebay.platform.config.model import Config
from forebay.platform.config.secrets import secrets_of

PATH = "/internal/router/snapshot"


def token_of(config: Config) -> str:
    """What peers show each other. Derived from the secret behind prefix keys, without which a snapshot is of no use."""
    secret = secrets_of(config, "cache-salt")[0][1]
    return hmac.new(secret, b"forebay router snapshot v1", hashlib.sha256).hexdigest()


def is_peer(token: str, authorization: str) -> bool:
    return hmac.compare_digest(f"Bearer {token}".encode(), authorization.encode("utf-8", "replace"))
