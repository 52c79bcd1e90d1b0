"""`${NAME}` in store URLs, from the environment."""

import re
from collections.abc import Mapping
from urllib.parse import quote

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def expand(template: str, environ: Mapping[str, str]) -> tuple[str, list[str]]:
    """`template` with its references replaced, and the names that are unset or empty.

    In the user part of a URL values are percent-encoded, so that a password may hold any character as it is.
    """
    missing = [name for name in _REFERENCE.findall(template) if not environ.get(name)]
    user, at, rest = template.rpartition("@")
    encoded = _REFERENCE.sub(lambda found: quote(environ.get(found[1], ""), safe=""), user)
    return encoded + at + _REFERENCE.sub(lambda found: environ.get(found[1], ""), rest), missing


def malformed(template: str) -> bool:
    """Whether a `$` that looks like a reference is none."""
    return "${" in _REFERENCE.sub("", template)
