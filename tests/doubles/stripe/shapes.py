"""Requests against the types of stripe-python's parameters (`stripe.params.*`): what is missing, unknown
or mistyped."""

import importlib
import types
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import IO, Any, Literal, NotRequired, Required, Union, get_args, get_origin

import typing_extensions
from stripe import StripeContext
from stripe._request_options import RequestOptions

# Names that annotations use and their modules import for type checkers alone.
_NAMES = {"StripeContext": StripeContext, "Decimal": Decimal, "IO": IO, "Mapping": Mapping}
_NOT_SENT = set(RequestOptions.__annotations__)  # travel in headers


class ShapeError(Exception):
    def __init__(self, param: str, problem: str) -> None:
        super().__init__(f"{param}: {problem}" if param else problem)
        self.param = param


def shape(name: str) -> type:
    """`billing.MeterCreateParams` of stripe.params."""
    module, _, cls = f"stripe.params.{name}".rpartition(".")
    found: type = getattr(importlib.import_module(module), cls)
    return found


def check(given: Any, kind: type, *, form: bool) -> dict[str, Any]:
    """`given` as a `kind`. Of a form every leaf is text, and becomes what is wanted."""
    value = _check(given, kind, "", form)
    assert isinstance(value, dict)
    return value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing_extensions.get_type_hints(kind, localns=_NAMES, include_extras=True)


def _check(value: Any, hint: Any, path: str, form: bool) -> Any:
    origin = get_origin(hint)
    if origin in {NotRequired, Required}:
        return _check(value, get_args(hint)[0], path, form)
    if origin in {Union, types.UnionType}:
        return _any(value, get_args(hint), path, form)
    if origin is Literal:
        if value in get_args(hint):
            return value
        raise ShapeError(path, f"must be one of {', '.join(map(str, get_args(hint)))}")
    if origin is list:
        if not isinstance(value, list):
            raise ShapeError(path, "must be a list")
        return [_check(one, get_args(hint)[0], f"{path}[{i}]", form) for i, one in enumerate(value)]
    if origin is dict:
        if not isinstance(value, dict):
            raise ShapeError(path, "must be a hash")
        return {name: _check(one, get_args(hint)[1], f"{path}[{name}]", form) for name, one in value.items()}
    if typing_extensions.is_typeddict(hint):
        return _members(value, hint, path, form)
    return _leaf(value, hint, path, form)


def _any(value: Any, options: tuple[Any, ...], path: str, form: bool) -> Any:
    faults = []
    for option in options:
        try:
            return _check(value, option, path, form)
        except ShapeError as error:
            faults.append(error)
    raise max(faults, key=lambda one: len(one.param))


def _members(value: Any, kind: Any, path: str, form: bool) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ShapeError(path, "must be a hash")
    hints = {name: hint for name, hint in _hints(kind).items() if path or name not in _NOT_SENT}
    for name in value:
        if name not in hints:
            raise ShapeError(_under(path, name), f"Received unknown parameter: {_under(path, name)}")
    for name, hint in hints.items():
        if name not in value and get_origin(hint) is not NotRequired:
            raise ShapeError(_under(path, name), f"Missing required param: {_under(path, name)}.")
    return {name: _check(one, hints[name], _under(path, name), form) for name, one in value.items()}


def _leaf(value: Any, hint: Any, path: str, form: bool) -> Any:
    try:
        if form and isinstance(value, str):
            if hint is bool and value in {"true", "false"}:
                return value == "true"
            if hint in {int, float, Decimal}:
                return hint(value)
        if hint in {Decimal} and isinstance(value, str):
            return Decimal(value)
    except (ValueError, InvalidOperation):
        raise ShapeError(path, f"Invalid {hint.__name__}: {value}") from None
    if hint is Any or (isinstance(hint, type) and isinstance(value, hint) and not isinstance(value, bool)):
        return value
    if hint is bool and isinstance(value, bool):
        return value
    raise ShapeError(path, f"must be {getattr(hint, '__name__', hint)}")


def _under(path: str, name: str) -> str:
    return f"{path}[{name}]" if path else name


def unflattened(pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """A form's `a[b][0]=c` as nested members."""
    root: dict[str, Any] = {}
    for name, value in pairs:
        keys = name.replace("]", "").split("[")
        at = root
        for key in keys[:-1]:
            at = at.setdefault(key, {})
        at[keys[-1]] = value
    result = _lists(root)
    assert isinstance(result, dict)
    return result


def _lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    made = {key: _lists(one) for key, one in value.items()}
    if made and all(key.isdigit() for key in made):
        return [made[key] for key in sorted(made, key=int)]
    return made
