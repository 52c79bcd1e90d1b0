"""The tables of docs/configuration.md, from the structs. `.venv/bin/python -m forebay.platform.config.reference docs`
renews them and the published schema."""

import sys
from pathlib import Path
from typing import Any

from msgspec import NODEFAULT, inspect

from forebay.platform.config import schema
from forebay.platform.config.model import Config
from forebay.platform.config.scalars import unwrapped

MARK = "<!-- Below this line: written by .venv/bin/python -m forebay.platform.config.reference docs -->\n"


def tables() -> str:
    """A section with a table of keys for each struct, in the order of the file."""
    kind = inspect.type_info(Config)
    assert isinstance(kind, inspect.StructType)
    return "\n".join(_section(path, struct) for path, struct in _structs("", kind))


def page(current: str) -> str:
    """docs/configuration.md with its tables renewed."""
    return current.partition(MARK)[0] + MARK + "\n" + tables()


def _structs(path: str, kind: inspect.StructType) -> list[tuple[str, inspect.StructType]]:
    found = [(path, kind)]
    for field in kind.fields:
        inner, _ = unwrapped(field.type)
        many = isinstance(inner, inspect.VarTupleType)
        inner = unwrapped(inner.item_type)[0] if isinstance(inner, inspect.VarTupleType) else inner
        if isinstance(inner, inspect.StructType):
            found += _structs(f"{path}.{field.encode_name}{'[]' if many else ''}".removeprefix("."), inner)
    return found


def _section(path: str, kind: inspect.StructType) -> str:
    rows = "".join(f"| {' | '.join(_row(field))} |\n" for field in kind.fields)
    about = " ".join((kind.cls.__doc__ or "").split())
    title = f"`{path}`" if path else "Top level"
    return f"### {title}\n\n{about}\n\n| key | type | default | meaning |\n|---|---|---|---|\n{rows}"


def _row(field: inspect.Field) -> tuple[str, str, str, str]:
    kind, hint = unwrapped(field.type)
    return f"`{field.encode_name}`", _type(kind, hint), _default(field), str(hint["description"])


def _type(kind: inspect.Type, hint: dict[str, Any]) -> str:
    match kind:
        case inspect.VarTupleType():
            return f"list: {_type(*unwrapped(kind.item_type))}"
        case inspect.StructType():
            return "mapping, see below"
        case inspect.LiteralType():
            return ", ".join(f"`{choice}`" for choice in kind.values)
        case inspect.IntType() | inspect.FloatType():
            low = f">{kind.gt:g}" if kind.gt is not None else f"{kind.ge}"
            return f"{'integer' if isinstance(kind, inspect.IntType) else 'number'} {low}…{kind.le or ''}"
        case inspect.StrType():
            return str(hint.get("expects", "text"))
    return _TYPES[type(kind)]


_TYPES = {
    inspect.BoolType: "`true` or `false`",
    inspect.DecimalType: "decimal string or integer",
    inspect.DateTimeType: "RFC 3339 instant with a time zone",
}


def _default(field: inspect.Field) -> str:
    if field.required:
        return "required"
    value = field.default
    if value is NODEFAULT or value is None or value == ():
        return ""
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value)
    if isinstance(value, int) and "bytes" in field.encode_name.lower() and value >= 1 << 20:
        return f"`{value}` ({value >> 20} MiB)" if value < 1 << 30 else f"`{value}` ({value >> 30} GiB)"
    return f"`{str(value).lower() if isinstance(value, bool) else f'{value:g}' if isinstance(value, float) else value}`"


def renew(docs: Path) -> None:
    configuration = docs / "configuration.md"
    configuration.write_text(page(configuration.read_text("utf-8")), "utf-8")
    (docs / "forebay.schema.json").write_text(schema.text(), "utf-8")


if __name__ == "__main__":
    renew(Path(sys.argv[1]))
