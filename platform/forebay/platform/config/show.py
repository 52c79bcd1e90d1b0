"""A configuration as people read it: YAML in the form of the file, with defaults, without passwords."""

from decimal import Decimal
from typing import Any

import msgspec
import yaml

from forebay.platform.config.model import Config
from forebay.platform.config.redact import redact


def as_yaml(config: Config) -> str:
    """The effective configuration. What it prints is itself valid, but for the passwords."""
    plain = msgspec.to_builtins(config, builtin_types=(Decimal,))
    text: str = yaml.safe_dump(_printable(plain), sort_keys=False, allow_unicode=True, width=1000)
    return text


def _printable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _printable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(item) for item in value]
    if isinstance(value, Decimal):
        return format(value, "f")
    return redact(value) if isinstance(value, str) else value
