"""What a template knew when its main loop began, and whether that is still so where a rendering goes on (pure).

Before that loop a template may have looked at the whole conversation, for the last question, say. It is then run again,
and what it finds compared: the text it wrote must be the same, and so must those of its variables that had been used by
the mark; one that was only compared with the loop's index may have any value for which that comes out the same.
"""

from collections.abc import Mapping
from typing import Any

from jinja2.runtime import Undefined
from jinja2.utils import Namespace
from msgspec import Struct

from forebay.router.prompt.causal import FOREVER, NeedWhole
from forebay.router.prompt.causal_marks import EXACT, LARGE, OPAQUE, UNSET, Given, Mark, kept, same
from forebay.router.prompt.causal_plan import Plan
from forebay.router.prompt.template_limits import contents

ANY = (-FOREVER, FOREVER)  # a variable of which nothing was asked


class Opening(Struct, frozen=True):
    """`values` and `spaces` as in `causal_marks.Base`. `closed`: they may be others for a longer conversation."""

    values: dict[str, Any]
    spaces: dict[str, dict[str, Any]]
    rerun: bool
    closed: bool


def opening(values: Mapping[str, Any], plan: Plan, given: Mapping[str, Any], *, closed: bool) -> Opening | None:
    """None if nobody can go on from here: because something in the variables changes as it is used."""
    named = {name: value for name, value in values.items() if type(value) is Namespace}
    parts = {name: _kept(value, given) for name, value in values.items() if name not in named}
    spaces = {name: {key: kept(part) for key, part in contents(space).items()} for name, space in named.items()}
    every = {f"{name}.{key}": part for name, inside in spaces.items() for key, part in inside.items()} | parts
    if any(part is OPAQUE for part in every.values()) or len({id(space) for space in named.values()}) < len(named):
        return None
    large = {name for name, part in every.items() if part is LARGE}
    rerun = closed or bool(large)
    if (rerun and plan.changed is None) or (closed and not large <= plan.watched):
        return None
    return Opening(parts, spaces, rerun, closed)


def check(found: Opening | None, text: str, mark: Mark, plan: Plan) -> None:
    """Raises `NeedWhole` unless all that the text up to the mark depends on is the same as it was."""
    base = mark.base
    if base.opening is None:
        return
    if found is None or mark.messages < base.needed or text != base.opening:
        raise NeedWhole
    if found.values.keys() != base.values.keys():
        raise NeedWhole
    for name, old in base.values.items():
        _compare(name, old, found.values[name], mark, plan)
    for name, olds in base.spaces.items():
        inside = found.spaces[name]
        if inside.keys() != olds.keys():
            raise NeedWhole
        for key, old in olds.items():
            _compare(f"{name}.{key}", old, inside[key], mark, plan)


def put_back(values: Mapping[str, Any], mark: Mark) -> None:
    """What the loop had assigned in namespaces by the mark."""
    for name, saved in mark.state.spaces.items():
        for key, part in saved.items():
            values[name][key] = Undefined(name=key) if part is UNSET else part


def interval(index: int, comparison: str, value: int) -> tuple[int, int]:
    """The least and the greatest value with which a comparison with `index` comes out as it does with `value`."""
    if comparison in ("eq", "ne") and value == index:
        return index, index
    cut = index if comparison in ("gt", "lteq") or value < index else index + 1
    if comparison in ("gteq", "lt"):
        cut = index + 1
    return (cut, FOREVER) if value >= cut else (-FOREVER, cut - 1)


def _kept(value: Any, given: Mapping[str, Any]) -> Any:
    if isinstance(value, list | dict):
        for name, one in given.items():
            if one is value:
                return Given(name)
    return kept(value)


def _compare(name: str, old: Any, new: Any, mark: Mark, plan: Plan) -> None:
    if name in plan.watched:
        use = mark.state.uses.get(name, ANY)
        if use == ANY or (use != EXACT and type(new) is int and use[0] <= new <= use[1]):
            return
    if old is LARGE or not same(old, new):
        raise NeedWhole
