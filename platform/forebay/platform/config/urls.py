"""Rules for URLs. They change the data: base URLs lose a trailing slash, store URLs get their `${NAME}` filled in.

Store URLs hold passwords, so nothing of them is ever shown but their scheme.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from forebay.platform.config.expand import expand, malformed
from forebay.platform.config.faults import Path, Report
from forebay.platform.config.nearest import nearest
from forebay.platform.config.redact import redact

_SCHEMES = {
    "postgres": ("postgresql", "postgres"),
    "valkey": ("valkey", "valkeys", "redis", "rediss", "unix"),
}
_SHAPES = {
    "postgres": "postgresql://user:${PGPASSWORD}@host:5432/database",
    "valkey": "valkey://:${VALKEY_PASSWORD}@host:6379/0",
}


def endpoint(data: dict[str, Any], path: Path, report: Report) -> None:
    """An engine's base URL: no credentials, no query, no /v1. A faulty one becomes None: no later rule may show it."""
    if data["url"] is not None:
        data["url"] = _base(data["url"], (*path, "url"), report)


def _base(url: str, at: Path, report: Report) -> str | None:
    parts = _split(url)
    if parts is None or not parts.hostname:
        report.fault(at, f"'{redact(url)}' is no valid URL", "write it like http://10.0.0.5:8000")
    elif parts.username is not None or parts.password is not None:
        fix = "remove them and name the variable that holds the engine's key in apiKeyEnv"
        report.fault(at, "holds credentials", fix)
    elif parts.query or parts.fragment:
        report.fault(at, "has a query or fragment", f"write {parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}")
    elif re.search(r"/v1(/|$)", parts.path):
        root = f"{parts.scheme}://{parts.netloc}{re.split(r'/v1(?:/|$)', parts.path)[0]}"
        report.fault(at, "is not a base URL: Forebay adds /v1 itself", f"write {root}")
    else:
        return f"{parts.scheme.lower()}://{parts.netloc.lower()}{parts.path.rstrip('/')}"
    return None


def stores(data: dict[str, Any] | None, report: Report, environ: Mapping[str, str]) -> None:
    """`embedded` or a URL of a known scheme, with every variable it names."""
    for name in _SCHEMES if data else ():
        assert data is not None
        if data[name] not in (None, "embedded"):
            data[name] = _store(name, data[name], report, environ)


def _store(name: str, template: str, report: Report, environ: Mapping[str, str]) -> str | None:
    at = ("stores", name)
    text, missing = expand(template, environ)
    for variable in missing:
        fix = "set it where Forebay starts"
        report.fault(at, f"the variable {variable} is not set or empty", fix)
    if malformed(template):
        report.fault(at, "holds '${' that begins no reference", "write ${NAME}, with letters, digits and _")
    if missing or malformed(template):
        return None
    scheme, colon, _ = text.partition("://")
    parts = _split(text)
    if not colon:
        guess = nearest(text, ["embedded"]) if len(text) < 12 else None
        fix = f"did you mean {guess}?" if guess else f"write embedded, or a URL like {_SHAPES[name]}"
        report.fault(at, "is neither embedded nor a URL", fix)
    elif scheme not in _SCHEMES[name]:
        shown = f"'{scheme}://'" if re.fullmatch(r"[a-z0-9+.-]{1,30}", scheme) else "it"
        report.fault(at, f"{shown} is no scheme of {name}", f"write a URL like {_SHAPES[name]}")
    elif parts is None or re.search(r"\s", text) or not (parts.hostname or parts.query or scheme == "unix"):
        fix = f"percent-encode signs in its password, or let a variable hold it: {_SHAPES[name]}"
        report.fault(at, "is a URL without a valid host and port", fix)
    else:
        return text
    return None


def _split(url: str) -> SplitResult | None:
    """None where host or port are malformed."""
    try:
        parts = urlsplit(url)
        _ = parts.port, parts.hostname
    except ValueError:
        return None
    return parts
