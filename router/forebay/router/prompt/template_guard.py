"""Rewrites a parsed template so that nothing in it is left to Python that could run on or grow uncounted."""

from typing import Any

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from forebay.router.prompt.template_sandbox import RUN

_REFUSED = (
    nodes.Block,
    nodes.Extends,
    nodes.FromImport,
    nodes.Import,
    nodes.Include,
    nodes.ScopedEvalContextModifier,
)


def refused(tree: nodes.Template) -> str | None:
    """What a template does that no chat template can do here: the name of the tag, or None."""
    for node in tree.find_all(_REFUSED):
        return "autoescape" if isinstance(node, nodes.ScopedEvalContextModifier) else type(node).__name__.lower()
    return None


def run_name() -> nodes.Name:
    return nodes.Name(RUN, "load")


def hook(name: str, *args: nodes.Node, line: int) -> nodes.Filter:
    """A call of the internal filter `name` with the rendering and `args`."""
    return nodes.Filter(run_name(), name, list(args), [], None, None, lineno=line)


class Guard(NodeTransformer):
    """Leaves the loop `spared` to its own counting."""

    def __init__(self, spared: nodes.For | None = None) -> None:
        self._spared = spared

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - these names are Jinja's
        self.generic_visit(node)
        if node is not self._spared:
            node.iter = hook("#counted", node.iter, line=node.lineno)
        return node

    def visit_Add(self, node: nodes.Add) -> nodes.Node:  # noqa: N802
        parts: list[nodes.Expr] = [node.right]
        left: nodes.Expr = node.left
        while isinstance(left, nodes.Add):
            parts.append(left.right)
            left = left.left
        parts = [self.visit(part) for part in (left, *reversed(parts))]
        if len(parts) == 2 and any(isinstance(part, nodes.Const) and _number(part.value) for part in parts):
            return nodes.Add(*parts, lineno=node.lineno)
        return hook("#sum", *parts, line=node.lineno)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return hook("#text", *node.nodes, line=node.lineno)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return self._literal(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return self._literal(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        return self._literal(node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        part = node.arg
        if not isinstance(part, nodes.Slice):
            return node
        bounds = [nodes.Const(None) if bound is None else bound for bound in (part.start, part.stop, part.step)]
        return hook("#slice", node.node, *bounds, line=node.lineno)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        written = nodes.Filter(None, "#made", [], [], None, None, lineno=node.lineno)
        if node.filter is None:
            node.filter = written
        return node

    def _literal(self, node: nodes.List | nodes.Dict | nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        if all(map(_constant, node.items)) or any(isinstance(part, nodes.Slice) for part in node.items):
            return node
        return hook("#built", node, line=node.lineno)


def _constant(part: Any) -> bool:
    return isinstance(part, nodes.Const) or (isinstance(part, nodes.Pair) and isinstance(part.value, nodes.Const))


def _number(value: Any) -> bool:
    return isinstance(value, int | float)
