"""The Jinja environment that chat templates are written for, closed and bounded.

Source of the environment: transformers 5, utils/chat_template_utils.py. What is not on the lists here, engines may know
nevertheless: such a template fails with `SecurityError`, and the engine is asked instead.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any, Protocol

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter, safe_range
from jinja2.utils import Cycler, Joiner, Namespace, pass_context

from forebay.router.prompt.causal_loop import OF_LOOPS, Loop
from forebay.router.prompt.template_limits import Budget, contents

RUN = "__forebay"  # the variable that holds the `Running` in every context; sources that name it are refused
_BITS = 1 << 13  # of a whole number
_WIDTH = 10_000  # columns that a formatted value may be given
_PATTERN = 4096  # characters of what values are formatted with


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


METHODS: Mapping[type, frozenset[str]] = {
    str: words(
        "capitalize casefold center count endswith find format format_map index isalnum isalpha isascii isdecimal"
        " isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip partition"
        " removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith"
        " strip swapcase title upper zfill"
    ),
    dict: words("copy get items keys values"),
    list: words("copy count index"),
    tuple: words("count index"),
    int: words("bit_length is_integer"),
    float: words("is_integer"),
}
_OF_DICTS = frozenset(dir(dict))
_DIRECT: Mapping[type, frozenset[str]] = {
    Loop: OF_LOOPS,
    LoopContext: OF_LOOPS | {"changed"},
    str: METHODS[str] - {"format", "format_map"},
}
_CLASSES = (dict, Namespace, Cycler, Joiner)
_OWNERS = (Cycler, Joiner, Loop, LoopContext)


class Running(Protocol):
    """The rendering under way, as far as the environment is concerned."""

    budget: Budget

    def strftime(self, pattern: str) -> str: ...


class Refusal(jinja2.TemplateError):
    """The template called `raise_exception`."""


class Format:
    """`text.format` or `text.format_map`, called by `Environment.call`."""

    def __init__(self, text: str, *, mapped: bool) -> None:
        self.text = text
        self.mapped = mapped


class Generation(Extension):
    """`{% generation %}` marks what a model wrote, for training; here it is a scope and no more."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class Generator(CodeGenerator):
    """Computes nothing while it compiles."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if isinstance(node, nodes.TemplateData | nodes.Const):
            return super()._output_child_to_const(node, frame, finalize)
        raise nodes.Impossible


class Environment(ImmutableSandboxedEnvironment):
    code_generator_class = Generator
    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self, filters: Mapping[str, Callable[..., Any]], tests: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[Generation, loopcontrols])
        self.filters = dict(filters)
        self.tests = dict(tests)
        self.globals.pop("lipsum")
        self.globals["raise_exception"] = raise_exception
        self.globals["strftime_now"] = strftime_now

    def getattr(self, obj: Any, attribute: str) -> Any:
        # What templates mostly ask comes out as it would below, at a fifth of the cost.
        kind = type(obj)
        if kind is dict:
            if attribute not in _OF_DICTS:
                return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        elif kind is Namespace:
            inside = contents(obj)
            if attribute in inside and not attribute.startswith("_"):
                return inside[attribute]
        elif attribute in _DIRECT.get(kind, ()):
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if not super().is_safe_attribute(obj, attr, value):
            return False
        known = METHODS.get(type(obj))
        return known is None or attr in known

    def wrap_str_format(self, value: Any) -> Any:
        formats = type(value) is BuiltinMethodType and value.__name__ in ("format", "format_map")
        if formats and type(value.__self__) is str:
            return Format(value.__self__, mapped=value.__name__ == "format_map")
        return None

    def call_filter(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("#"):  # those that only rewritten templates use
            raise SecurityError(f"no filter named {name!r}")
        return super().call_filter(name, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        return _OPERATORS[operator](context.parent[RUN].budget, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        budget: Budget = __context.parent[RUN].budget
        budget.step()
        kind = type(__obj)
        if kind is BuiltinMethodType:
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            return _call_method(budget, __obj, args, kwargs)
        if kind is Format:
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            return _format(__self, budget, __obj, args, kwargs)
        if not _callable(__obj, kind):
            raise SecurityError(f"{kind.__name__!r} object is not safely callable")
        if kind is LoopContext and args:
            args = (budget.counted(args[0]), *args[1:])
        result = __context.call(__obj, *args, **kwargs)
        return budget.built(result) if isinstance(result, str | dict | Namespace) else result


def raise_exception(message: Any) -> None:
    raise Refusal(str(message))


@pass_context
def strftime_now(context: Context, pattern: str) -> str:
    """Raises `LimitReached` through `Running.strftime`, and what `datetime.strftime` raises."""
    running: Running = context.parent[RUN]
    return running.strftime(pattern)


def check_printf(budget: Budget, pattern: str, values: Any) -> None:
    """What `pattern % values` could make, before it does."""
    if len(pattern) > _PATTERN:
        budget.stop(f"formats with a pattern of more than {_PATTERN} characters")
    if _WIDE.search(pattern):
        budget.stop(f"gives a value a width of {_WIDTH} columns or more")
    given = values.values() if isinstance(values, dict) else values if isinstance(values, tuple) else (values,)
    longest = max((len(budget.text(value)) for value in given), default=0)
    places = pattern.count("%")
    budget.make(len(pattern) + places * (longest + (_WIDTH if _WIDTHS.search(pattern) else 32)))


def _callable(obj: Any, kind: type) -> bool:
    if kind in (Macro, LoopContext) or isinstance(obj, Undefined):
        return True
    if kind is FunctionType:
        return obj in (safe_range, raise_exception, strftime_now)
    if kind is MethodType:
        return isinstance(obj.__self__, _OWNERS)
    return obj in _CLASSES if isinstance(obj, type) else kind is Joiner


def _call_method(budget: Budget, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a method of a builtin type. Raises `SecurityError` for one that is not on the list."""
    owner, name = method.__self__, method.__name__
    if name not in METHODS.get(type(owner), ()):
        raise SecurityError(f"{name!r} of {type(owner).__name__!r} is not safely callable")
    if type(owner) is not str:
        return method(*args, **kwargs)
    if name in ("split", "rsplit", "splitlines"):
        budget.make(len(owner) + _PIECE * _pieces(owner, name, args, kwargs))
    elif name in ("center", "ljust", "rjust", "zfill") and args and type(args[0]) is int:
        budget.make(max(len(owner), args[0]))
    elif name == "replace" and len(args) > 1 and isinstance(args[0], str) and isinstance(args[1], str):
        budget.make(replaced(owner, args[0], args[1]))
    elif name == "join" and args:
        items = list(budget.counted(args[0]))
        budget.make(joined(owner, items))
        return owner.join(items)
    result = method(*args, **kwargs)
    if type(result) is str:
        budget.make(len(result))
    return result


_PIECE = 64  # characters that a piece of a split text counts for: about the memory it takes


def _pieces(text: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """At most so many pieces does splitting make."""
    if name == "splitlines":
        return text.count("\n") + 1 if text.isascii() and "\r" not in text else len(text)
    separator = args[0] if args else kwargs.get("sep")
    most = args[1] if len(args) > 1 else kwargs.get("maxsplit", -1)
    pieces = text.count(separator) + 1 if isinstance(separator, str) and separator else len(text) // 2 + 1
    return min(pieces, most + 1) if type(most) is int and most >= 0 else pieces


def replaced(text: str, old: str, new: str) -> int:
    """The length that `text.replace(old, new)` may have."""
    count = text.count(old) if old else len(text) + 1
    return len(text) + count * max(0, len(new) - len(old))


def joined(separator: str, items: Sequence[Any]) -> int:
    return len(separator) * len(items) + sum(len(item) for item in items if isinstance(item, str))


class _Formatter(SandboxedFormatter):
    def __init__(self, env: Environment, budget: Budget) -> None:
        super().__init__(env)
        self._budget = budget

    def format_field(self, value: Any, format_spec: str) -> Any:
        if any(int(digits) >= _WIDTH for digits in _DIGITS.findall(format_spec)):
            self._budget.stop(f"gives a value a width of {_WIDTH} columns or more")
        text = super().format_field(value, format_spec)
        self._budget.make(len(text))
        return text


def _format(env: Environment, budget: Budget, method: Format, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    if method.mapped:
        if kwargs or len(args) != 1:
            raise TypeError("format_map() takes exactly one argument")
        return _Formatter(env, budget).vformat(method.text, (), args[0])
    return _Formatter(env, budget).vformat(method.text, args, kwargs)


def _multiply(budget: Budget, left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > _BITS:
            budget.stop("computes with numbers of thousands of digits")
        return left * right
    for value, times in ((left, right), (right, left)):
        if isinstance(value, str | list | tuple) and isinstance(times, int):
            budget.make(len(value) * max(0, times) * (1 if isinstance(value, str) else 8))
            return budget.built(left * right)
    return left * right


def _power(budget: Budget, left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > _BITS:
        budget.stop("computes with numbers of thousands of digits")
    return left**right


def _modulo(budget: Budget, left: Any, right: Any) -> Any:
    if isinstance(left, str):
        check_printf(budget, left, right)
    return operator.mod(left, right)


_OPERATORS = {"*": _multiply, "**": _power, "%": _modulo}
_DIGITS = re.compile(r"\d+")
_WIDTHS = re.compile(r"%(?:\([^)]*\))?[^a-zA-Z%]*\d")
_WIDE = re.compile(r"%(?:\([^)]*\))?[^a-zA-Z%]*(?:\*|\d{5})")
