"""Takes passwords out of text that people will read."""

import re

_USERINFO = re.compile(r"(?s)^([A-Za-z][A-Za-z0-9+.-]*:/{1,2})?.*@")
_PARAMETER = re.compile(r"(?i)((?:pass(?:word|wd)?|secret|token|[a-z_]*key)=)(?:'[^']*'|[^&\s]*)")


def redact(text: str) -> str:
    """`text` without the user part of a URL and the values of parameters that are named like secrets.

    Everything up to the last `@` counts as user part, so that a malformed URL loses too much rather than too little.
    """
    return _PARAMETER.sub(r"\1***", _USERINFO.sub(r"\1***@", text))
