"""A configuration in effect as YAML in the form of the file, with defaults."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import yaml

from forebay.platform.config.document import value
from forebay.platform.config.model import Config
from forebay.platform.config.redact import redact


def as_yaml(config: Config, *, passwords: bool = False) -> str:
    """For people, without passwords; with `passwords` it reads back as the same configuration."""
    plain = msgspec.to_builtins(config, builtin_types=(Decimal,))
    shown = _printable(plain, str if passwords else redact)
    text: str = yaml.dump(shown, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    return text


class _Dumper(yaml.SafeDumper):
    """Quotes what is a number in YAML 1.2 alone, such as 1e3: PyYAML writes YAML 1.1."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    plain = yaml.ScalarNode("tag:yaml.org,2002:str", text)
    quotes = None if isinstance(value(plain), str) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=quotes)


_Dumper.add_representer(str, _text)


def _printable(part: Any, text: Callable[[str], str]) -> Any:
    if isinstance(part, dict):
        return {key: _printable(item, text) for key, item in part.items()}
    if isinstance(part, list | tuple):
        return [_printable(item, text) for item in part]
    if isinstance(part, Decimal):
        return format(part, "f")
    return text(part) if isinstance(part, str) else part
