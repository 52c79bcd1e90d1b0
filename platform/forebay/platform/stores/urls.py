"""Store URLs: `${NAME}` is read from the environment, and passwords never get out again."""

import os
import re

from forebay.platform.stores.daemon import StoreError

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def expand(url: str) -> str:
    """`url` with each `${NAME}` replaced. Raises StoreError naming a variable that is not set."""

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if found is None:
            raise StoreError(f"environment variable {match[1]}, named in a store's URL, is not set")
        return found

    return _VARIABLE.sub(value, url)
