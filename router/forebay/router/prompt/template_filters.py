"""Filters and tests of the sandbox: Jinja's own, with what they make accounted for before they make it.

Names that begin with `#` cannot be written in a template. They are what template_guard.py puts in the place of
operations that Jinja leaves to Python.
"""

import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce, update_wrapper
from typing import Any

from jinja2.filters import FILTERS, make_attrgetter
from jinja2.runtime import Context
from jinja2.tests import TESTS
from jinja2.utils import pass_context

from forebay.router.prompt.causal import Hidden, NeedWhole
from forebay.router.prompt.template_limits import Budget
from forebay.router.prompt.template_sandbox import RUN, Running, check_printf, joined, replaced, words

_FREE = ("abs", "count", "d", "default", "first", "float", "int", "last", "length")  # make nothing
_KNOWN = words(
    "attr capitalize dictsort e escape groupby items lower map max min reject rejectattr reverse safe select selectattr"
    " string title trim truncate unique upper wordcount"
)
_LISTED = 1 << 20  # characters of a text that may be taken apart into a list
_DIGITS = 100  # of a rounded number
_INDENT = 64  # columns
_BATCH = 10_000

Check = Callable[[Budget, Any, tuple[Any, ...], Mapping[str, Any]], Any]


def _charged(function: Callable[..., Any], check: Check | None = None) -> Callable[..., Any]:
    """The filter, which accounts for what it made. `check` gives the value to filter instead, or stops."""
    passes = getattr(getattr(function, "jinja_pass_arg", None), "name", None)

    @pass_context
    def filtered(context: Context, value: Any = "", *args: Any, **kwargs: Any) -> Any:
        budget: Budget = context.parent[RUN].budget
        if check is not None:
            value = check(budget, value, args, kwargs)
        if passes is None:
            result = function(value, *args, **kwargs)
        elif passes == "context":
            result = function(context, value, *args, **kwargs)
        elif passes == "environment":
            result = function(context.environment, value, *args, **kwargs)
        else:
            result = function(context.eval_ctx, value, *args, **kwargs)
        if isinstance(result, str):
            budget.make(len(result))
        elif isinstance(result, Iterator):
            return budget.counted(result)
        return result

    return update_wrapper(filtered, function, updated=())


def _argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], place: int, name: str, default: Any) -> Any:
    return args[place] if len(args) > place else kwargs.get(name, default)


def _apart(budget: Budget, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if isinstance(value, str) and len(value) > _LISTED:
        budget.stop(f"takes a text of more than {_LISTED} characters apart")
    return value


def _center(budget: Budget, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    width = _argument(args, kwargs, 0, "width", 80)
    budget.make(width if type(width) is int else 0)
    return value


def _indent(budget: Budget, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    width = _argument(args, kwargs, 0, "width", 4)
    text = budget.text(value)
    budget.make((text.count("\n") + 2) * (len(width) if isinstance(width, str) else int(width)))
    return value


def _replace(budget: Budget, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    old, new = _argument(args, kwargs, 0, "old", ""), _argument(args, kwargs, 1, "new", "")
    budget.make(replaced(budget.text(value), budget.text(old), budget.text(new)))
    return value


def _batch(budget: Budget, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    size = next(iter((*args, *kwargs.values())), 1)
    if type(size) is int and size > _BATCH:
        budget.stop(f"makes lists of more than {_BATCH} items")
    return _apart(budget, value, args, kwargs)


def _round(budget: Budget, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    digits = _argument(args, kwargs, 0, "precision", 0)
    if type(digits) is int and abs(digits) > _DIGITS:
        budget.stop(f"rounds to more than {_DIGITS} digits")
    return value


def _sum(budget: Budget, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if type(_argument(args, kwargs, 1, "start", 0)) not in (int, float):
        budget.stop("sums up what are no numbers")
    return value


def _format(budget: Budget, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    check_printf(budget, budget.text(value), kwargs or args)
    return value


def _join(context: Context, value: Any, d: Any = "", attribute: Any = None) -> str:
    budget: Budget = context.parent[RUN].budget
    if attribute is not None:
        value = map(make_attrgetter(context.environment, attribute), value)
    items = [budget.text(item) for item in budget.counted(value)]
    separator = budget.text(d)
    budget.make(joined(separator, items))
    return separator.join(items)


def _tojson(  # noqa: PLR0917 - as transformers has it
    context: Context,
    x: Any,
    ensure_ascii: Any = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: Any = False,
) -> str:
    """As transformers has it: unlike Jinja's own, it escapes nothing for HTML."""
    budget: Budget = context.parent[RUN].budget
    if (len(indent) if isinstance(indent, str) else indent or 0) > _INDENT:
        budget.stop(f"indents by more than {_INDENT} columns")
    if separators is not None and sum(map(len, separators)) > _INDENT:
        budget.stop(f"has separators of more than {_INDENT} characters")
    text = json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    budget.make(len(text))
    return text


def _sum_of(run: Running, *parts: Any) -> Any:
    """`a + b + c`. Texts are put together at once, which copies them once instead of at each sign."""
    for part in parts:
        if type(part) is not str:
            result = reduce(operator.add, parts)
            return result if isinstance(result, int | float) else run.budget.built(result)
    text = "".join(parts)
    run.budget.make(len(text))
    return text


def _text_of(run: Running, *parts: Any) -> str:
    """`a ~ b ~ c`."""
    text = "".join([run.budget.text(part) for part in parts])
    run.budget.make(len(text))
    return text


def _built(run: Running, value: Any) -> Any:
    return run.budget.built(value)


def _slice(run: Running, value: Any, start: Any, stop: Any, step: Any) -> Any:
    """`value[start:stop:step]`."""
    part = value[slice(start, stop, step)]
    if isinstance(part, str):
        run.budget.make(len(part))
    return part


def _counted(run: Running, iterable: Iterable[Any]) -> Iterator[Any]:
    return run.budget.counted(iterable)


@pass_context
def _made(context: Context, text: str) -> str:
    """What a block wrote, accounted for."""
    context.parent[RUN].budget.make(len(text))
    return text


def _is_string(value: Any) -> bool:
    return value.text if type(value) is Hidden else isinstance(value, str)


def _asked(test: Callable[..., Any]) -> Callable[..., Any]:
    """The test, which knows nothing of what is hidden."""

    def asked(value: Any, *args: Any, **kwargs: Any) -> Any:
        if type(value) is Hidden:
            raise NeedWhole
        return test(value, *args, **kwargs)

    return asked


FILTERS_HERE: dict[str, Callable[..., Any]] = {
    **{name: FILTERS[name] for name in _FREE},
    **{name: _charged(FILTERS[name]) for name in _KNOWN},
    "batch": _charged(FILTERS["batch"], _batch),
    "center": _charged(FILTERS["center"], _center),
    "format": _charged(FILTERS["format"], _format),
    "indent": _charged(FILTERS["indent"], _indent),
    "join": pass_context(_join),
    "list": _charged(FILTERS["list"], _apart),
    "replace": _charged(FILTERS["replace"], _replace),
    "round": _charged(FILTERS["round"], _round),
    "slice": _charged(FILTERS["slice"], _batch),
    "sort": _charged(FILTERS["sort"], _apart),
    "sum": _charged(FILTERS["sum"], _sum),
    "tojson": pass_context(_tojson),
    "#built": _built,
    "#counted": _counted,
    "#made": _made,
    "#slice": _slice,
    "#sum": _sum_of,
    "#text": _text_of,
}
_TESTS: Mapping[str, Any] = TESTS
_PLAIN = ("defined", "undefined", "none", "filter", "test", "string")
TESTS_HERE: dict[str, Callable[..., Any]] = {
    **{name: test if name in _PLAIN else _asked(test) for name, test in _TESTS.items()},
    "string": _is_string,
}
