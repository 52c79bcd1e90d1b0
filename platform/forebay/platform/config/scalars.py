"""Single values: what a YAML scalar means where a certain type is wanted, or why it cannot mean anything."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import inspect

from forebay.platform.config.nearest import meant
from forebay.platform.config.redact import redact

Hint = dict[str, Any]  # the annotations around a type: pattern, expects, private …
SINGLE, DOUBLE = "'", '"'
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_BOOLEANS = {"yes": "true", "on": "true", "true": "true", "no": "false", "off": "false", "false": "false"}
_UNITS = {
    "": 1, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600,
    "kb": 1000, "mb": 1000**2, "gb": 1000**3, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30,
}  # fmt: skip


class WrongError(Exception):
    """A value that does not fit: what is wrong, what would be right."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.problem, self.fix = problem, fix


def scalar(found: Any, raw: str, kind: inspect.Type, hint: Hint) -> Any:
    """`found` (what YAML 1.2 reads in `raw`) as a `kind`. Raises WrongError."""
    if found is None:
        raise WrongError("is empty", f"write {expected(kind, hint)}, or remove the key")
    return SCALARS[type(kind)](found, raw, kind, hint)


def _text(found: Any, raw: str, kind: inspect.StrType, hint: Hint) -> str:
    if isinstance(found, int) and not isinstance(found, bool) and "integer" in hint.get("type", ()):
        found = str(found)
    if not isinstance(found, str):
        what = "true or false" if isinstance(found, bool) else "a number"
        raise WrongError(f"is {what} to YAML where text belongs", f"quote it: {_shown(raw, hint, DOUBLE)}")
    if _CONTROL.search(found):
        raise WrongError("holds a line break or control character", f"write {expected(kind, hint)}")
    if len(found) < (kind.min_length or 0):
        raise WrongError("is empty text", f"write {expected(kind, hint)}, or remove the key")
    if kind.pattern and not re.search(kind.pattern, found):
        raise WrongError(f"{quoted(found, hint)} does not fit", f"write {expected(kind, hint)}")
    return found


def _choice(found: Any, raw: str, kind: inspect.LiteralType, hint: Hint) -> Any:
    if found in kind.values:
        return found
    choices = [str(choice) for choice in kind.values]
    guess = meant(raw, choices) if len(choices) > 1 else None
    raise WrongError(f"{quoted(raw, hint)} is not one of the choices", f"write {expected(kind, hint)}{_aside(guess)}")


def _boolean(found: Any, raw: str, kind: inspect.BoolType, hint: Hint) -> bool:
    if isinstance(found, bool):
        return found
    guess = _BOOLEANS.get(raw.lower(), "true or false")
    raise WrongError(f"{quoted(raw, hint)} is neither true nor false", f"write {guess} without quotes")


def _number(found: Any, raw: str, kind: inspect.IntType | inspect.FloatType, hint: Hint) -> float | int:
    whole = isinstance(kind, inspect.IntType)
    if whole and re.fullmatch(r"[-+]?[0-9]{19,}", raw):  # a float to YAML here
        raise WrongError(f"{raw[:60]} is too {'low' if raw[0] == '-' else 'high'}", f"write {expected(kind, hint)}")
    if isinstance(found, bool) or not isinstance(found, int if whole else int | float):
        what = f"{quoted(raw, hint)} is not a {'whole ' if whole else ''}number"
        raise WrongError(what, f"write {_measured(raw, whole) or expected(kind, hint)}")
    low = (kind.ge is None or found >= kind.ge) and (kind.gt is None or found > kind.gt)
    high = (kind.le is None or found <= kind.le) and (kind.lt is None or found < kind.lt)
    if not (low and high):
        raise WrongError(f"{raw} is too {'high' if low else 'low'}", f"write {expected(kind, hint)}")
    return int(found) if whole else float(found)


def _decimal(found: Any, raw: str, kind: inspect.DecimalType, hint: Hint) -> Decimal:
    called = hint.get("called", "price")
    if isinstance(found, float):
        exact = raw.lstrip("+-") if re.fullmatch(hint["pattern"], raw.lstrip("+-")) else "0.15"
        what = f"{raw} is a floating-point number to YAML, which cannot hold most decimal {called}s exactly"
        raise WrongError(what, f'write it in quotes: "{exact}"')
    if raw.startswith("-"):
        raise WrongError(f"{quoted(raw, hint)} is negative", f"write a {called} of 0 or more")
    if isinstance(found, bool) or not re.fullmatch(hint["pattern"], str(found)):
        raise WrongError(f"{quoted(raw, hint)} is not a {called}", f"write {expected(kind, hint)}")
    return Decimal(str(found))


def _instant(found: Any, raw: str, kind: inspect.DateTimeType, hint: Hint) -> datetime:
    if re.fullmatch(r"\d{4}-\d\d-\d\d", raw):
        raise WrongError(f"{quoted(raw, hint)} has no time and no time zone", f"write {raw}T00:00:00Z")
    try:
        instant: datetime = msgspec.convert(raw, datetime)
        if instant.tzinfo is not None:
            return instant.astimezone(UTC)
    except (msgspec.ValidationError, OverflowError):
        raise WrongError(f"{quoted(raw, hint)} is not an instant", f"write {expected(kind, hint)}") from None
    fix = f"write {raw}Z for UTC, or append an offset such as +01:00"
    raise WrongError(f"{quoted(raw, hint)} has no time zone", fix)


SCALARS: dict[type[inspect.Type], Callable[..., Any]] = {
    inspect.StrType: _text,
    inspect.LiteralType: _choice,
    inspect.BoolType: _boolean,
    inspect.IntType: _number,
    inspect.FloatType: _number,
    inspect.DecimalType: _decimal,
    inspect.DateTimeType: _instant,
}


def unwrapped(kind: inspect.Type, hint: Hint | None = None) -> tuple[inspect.Type, Hint]:
    """The type beneath annotations and `| None`, with all their hints."""
    hint = hint or {}
    if isinstance(kind, inspect.Metadata):
        return unwrapped(kind.type, hint | (kind.extra_json_schema or {}) | (kind.extra or {}))
    if isinstance(kind, inspect.UnionType):
        (option,) = (option for option in kind.types if not isinstance(option, inspect.NoneType))
        return unwrapped(option, hint)
    return kind, hint


def expected(kind: inspect.Type, hint: Hint) -> str:
    """What a right value looks like, as it reads after "write"."""
    if "expects" in hint:
        return str(hint["expects"])
    match kind:
        case inspect.LiteralType():
            return " or ".join(filter(None, [", ".join(map(str, kind.values[:-1])), str(kind.values[-1])]))
        case inspect.IntType() | inspect.FloatType():
            low = f" above {kind.gt:g}" if kind.gt is not None else f" from {kind.ge}" if kind.ge is not None else ""
            high = f" up to {kind.le}" if kind.le is not None else ""
            return f"a {'whole ' if isinstance(kind, inspect.IntType) else ''}number{low}{high}"
        case inspect.StructType():
            return f"a mapping with keys such as {', '.join(field.encode_name for field in kind.fields[:3])}"
        case inspect.DecimalType():
            most = f", {hint['maximum']} at most" if "maximum" in hint else ""
            return f'a decimal string such as "0.15" (up to 12 decimals) or a whole number{most}'
    return _EXPECTED.get(type(kind), "text")


_EXPECTED = {
    inspect.BoolType: "true or false",
    inspect.DateTimeType: "an instant with a time zone such as 2026-01-01T00:00:00Z",
    inspect.VarTupleType: "a list",
}


def quoted(raw: str, hint: Hint) -> str:
    """A value as faults show it: short, without secrets."""
    return _shown(raw, hint, SINGLE)


def _shown(raw: str, hint: Hint, mark: str) -> str:
    if hint.get("private"):
        return "the value"
    text = _CONTROL.sub(" ", redact(raw))
    return f"{mark}{text[:60]}{'…' if len(text) > 60 else ''}{mark}"


def _aside(guess: str | None) -> str:
    return f" ({guess})" if guess else ""


def _measured(raw: str, whole: bool) -> str | None:
    """`32 MiB` or `30s` as the number that was meant, `010` as 10."""
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*([A-Za-z]*)", raw.strip().replace("_", ""))
    if not found or found[2].lower() not in _UNITS:
        return None
    amount = float(found[1]) * _UNITS[found[2].lower()]
    if whole and not amount.is_integer():
        return None
    unit = "" if not found[2] else " (bytes)" if whole else " (seconds)"
    return f"{int(amount) if amount.is_integer() else amount}{unit} without quotes"
