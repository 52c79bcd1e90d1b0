"""A configuration in effect as YAML in the form of the file, with defaults."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import yaml

from forebay.platform.config.model import Config
from forebay.platform.config.redact import redact


def as_yaml(config: Config, *, passwords: bool = False) -> str:
    """For people, without passwords; with `passwords` it reads back as the same configuration."""
    plain = msgspec.to_builtins(config, builtin_types=(Decimal,))
    shown = _printable(plain, str if passwords else redact)
    text: str = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=1000)
    return text


def _printable(value: Any, text: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {key: _printable(item, text) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(item, text) for item in value]
    if isinstance(value, Decimal):
        return format(value, "f")
    return text(value) if isinstance(value, str) else value
