"""A YAML document to plain data of a given type, collecting every fault on the way.

The types come from msgspec's own description of the structs, so that a new key needs no line here. The result has each
struct as a dict by key on disk, complete with defaults; what was faulty is None there, and later checks pass over it.
"""

import re
from typing import Any

import yaml
from msgspec import NODEFAULT, inspect

from forebay.platform.config.document import entries, value
from forebay.platform.config.faults import DocumentError, Path, Report
from forebay.platform.config.nearest import meant, where_else
from forebay.platform.config.scalars import Hint, WrongError, expected, quoted, scalar, unwrapped

NODE_LIMIT = 200_000  # values, counting those behind an alias each time it is used


class Decoder:
    """One pass over one document. Faults go to `report`; excess raises DocumentError."""

    def __init__(self, root: inspect.StructType, report: Report) -> None:
        self.root = root
        self.report = report
        self.left = NODE_LIMIT

    def decode(self, node: yaml.Node | None) -> dict[str, Any]:
        """The whole document; None stands for an empty one."""
        if node is None or (isinstance(node, yaml.ScalarNode) and value(node) is None):
            return defaults(self.root)
        self.report.lines[()] = node.start_mark.line + 1
        return self.walk(node, self.root, (), {}) or defaults(self.root)

    def walk(self, node: yaml.Node, kind: inspect.Type, path: Path, hint: Hint) -> Any:
        self.left -= 1
        if self.left < 0:
            line = node.start_mark.line + 1
            raise DocumentError(line, f"more than {NODE_LIMIT} values once aliases are expanded", "use fewer aliases")
        try:
            match kind:
                case inspect.Metadata():
                    return self.walk(node, kind.type, path, hint | (kind.extra_json_schema or {}) | (kind.extra or {}))
                case inspect.UnionType():
                    empty = isinstance(node, yaml.ScalarNode) and value(node) is None
                    return None if empty else self.walk(node, unwrapped(kind)[0], path, hint | unwrapped(kind)[1])
                case inspect.StructType():
                    return self.struct(node, kind, path)
                case inspect.VarTupleType():
                    return self.sequence(node, kind, path, hint)
            if not isinstance(node, yaml.ScalarNode):
                raise WrongError(f"is {_got(node)}", f"write {expected(kind, hint)}")
            return scalar(value(node), node.value, kind, hint)
        except WrongError as wrong:
            self.report.fault(path, wrong.problem, wrong.fix)
            return None

    def struct(self, node: yaml.Node, kind: inspect.StructType, path: Path) -> dict[str, Any]:
        fields = {field.encode_name: field for field in kind.fields}
        if not isinstance(node, yaml.MappingNode):
            raise WrongError(f"is {_got(node)}", f"write {expected(kind, {})}")
        data = defaults(kind)
        given: dict[str, int] = {}
        for key_node, item, merged in entries(node):
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.report.fault(path, f"has a key that is {_got(key_node)}", "write keys as plain text", line=line)
                continue
            key = key_node.value
            if key in given and not merged:
                shown = key if key in fields else quoted(key, {})
                self.report.fault(path, f"{shown} is given twice, first in line {given[key]}", "keep one", line=line)
            if key in given:
                continue
            given[key] = line
            if key in fields:
                self.report.lines[(*path, key)] = line
                data[key] = self.walk(item, fields[key].type, (*path, key), {})
            else:
                self.unknown(key, list(fields), path, line)
        for name, field in fields.items():
            if field.required and name not in given:
                self.report.fault((*path, name), "is missing", f"write {expected(*unwrapped(field.type))}")
        return data

    def unknown(self, key: str, fields: list[str], path: Path, line: int) -> None:
        fix = meant(key, fields) or where_else(key, path, self.root) or f"the keys here are {', '.join(fields)}"
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,40}", key):
            self.report.fault((*path, key), "unknown key", fix, line=line)
        else:
            self.report.fault(path, f"unknown key {quoted(key, {})}", fix, line=line)

    def sequence(self, node: yaml.Node, kind: inspect.VarTupleType, path: Path, hint: Hint) -> tuple[Any, ...]:
        if not isinstance(node, yaml.SequenceNode):
            fix = "begin each entry with '- '" if isinstance(node, yaml.MappingNode) else "write a list: [a, b]"
            fix = "give it a value or remove the key" if _empty(node) else fix
            raise WrongError(f"is {_got(node)}, not a list", fix)
        if len(node.value) < (kind.min_length or 0):
            raise WrongError("is an empty list", f"give at least {kind.min_length}")
        for i, item in enumerate(node.value):
            self.report.lines[(*path, i)] = item.start_mark.line + 1
        return tuple(self.walk(item, kind.item_type, (*path, i), hint) for i, item in enumerate(node.value))


def defaults(kind: inspect.StructType) -> dict[str, Any]:
    """A struct's data when nothing is given; None where a key is required."""
    return {field.encode_name: _default(field) for field in kind.fields}


def _default(field: inspect.Field) -> Any:
    if field.default is not NODEFAULT:
        return field.default
    kind, _ = unwrapped(field.type)
    return None if field.required or not isinstance(kind, inspect.StructType) else defaults(kind)


def _got(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return "empty" if _empty(node) else "a single value"
    return "a mapping" if isinstance(node, yaml.MappingNode) else "a list"


def _empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and value(node) is None
