"""The two programs that a template with a plan becomes: one that renders a conversation from its beginning and notes
what it would take to go on from each message, and one that goes on. What their hooks do is in causal_run.py.
"""

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from forebay.router.prompt.causal_plan import Plan, counted_messages, loop_names
from forebay.router.prompt.template_guard import Guard, hook

_LOOP = "__forebay_loop"
_COMPARED = frozenset({"eq", "ne", "gt", "gteq", "lt", "lteq"})
_TURNED = {"eq": "eq", "ne": "ne", "gt": "lt", "gteq": "lteq", "lt": "gt", "lteq": "gteq"}


def watching(tree: nodes.Template, plan: Plan) -> nodes.Template:
    """The opening, the loop and the ending, with watched variables noted where they are read."""
    main = _prepared(tree, plan)
    watch = _Watch(plan.watched)
    main.body = [watch.visit(node) for node in main.body]
    for place, node in enumerate(tree.body):
        if isinstance(node, nodes.Macro):
            tree.body[place] = watch.visit(node)
    Guard(main).visit(tree)
    values = [nodes.Pair(nodes.Const(name), nodes.Name(name, "load")) for name in sorted(plan.names)]
    begin = nodes.ExprStmt(hook("#begin", nodes.Dict(values), line=main.lineno), lineno=main.lineno)
    tree.body[: plan.main] = [*(_skippable(place, tree.body[place], plan) for place in range(plan.main)), begin]
    main.iter = hook(_walk(plan), main.iter, line=main.lineno)
    return tree


def _skippable(place: int, node: nodes.Node, plan: Plan) -> nodes.Node:
    if place not in plan.steady:
        return node
    line = node.lineno
    settle = nodes.ExprStmt(hook("#settle", nodes.Const(place), line=line), lineno=line)
    return nodes.If(hook("#write", nodes.Const(place), line=line), [node, settle], [], [], lineno=line)


def resuming(tree: nodes.Template, plan: Plan) -> nodes.Template:
    """The loop and the ending, after the opening's variables were put back."""
    main = _prepared(tree, plan)
    Guard(main).visit(tree)
    line = main.lineno
    values: list[nodes.Node] = [
        nodes.Assign(nodes.Name(name, "store"), hook("#value", nodes.Const(name), line=line), lineno=line)
        for name in sorted(plan.names)
    ]
    macros = [node for node in tree.body[: plan.main] if isinstance(node, nodes.Macro)]
    main.iter = hook(_walk(plan), nodes.Const(None), line=line)
    tree.body = [*values, *macros, main, *tree.body[plan.main + 1 :]]
    return tree


def _prepared(tree: nodes.Template, plan: Plan) -> nodes.For:
    """The main loop, which is told its messages, and what else it asks of `loop`, by the rendering."""
    main = tree.body[plan.main]
    assert isinstance(main, nodes.For)
    assert isinstance(main.target, nodes.Name)
    if plan.looped:
        for name in list(loop_names(main.body)):
            name.name = _LOOP
        main.target = nodes.Tuple([main.target, nodes.Name(_LOOP, "store")], "store", lineno=main.lineno)
    _Count(plan.aliases).visit(tree)
    return main


def _walk(plan: Plan) -> str:
    return "#walk with loop" if plan.looped else "#walk"


class _Count(NodeTransformer):
    """Comparisons of the number of messages with a constant, which mostly hold for longer conversations as well."""

    def __init__(self, aliases: frozenset[str]) -> None:
        self._aliases = aliases

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802 - these names are Jinja's
        counted = counted_messages(node, self._aliases)
        if counted is None or counted[1] not in _COMPARED:
            return self.generic_visit(node)
        name, operator, bound = counted
        return hook("#count", name, nodes.Const(operator), bound, line=node.lineno)


class _Watch(NodeTransformer):
    """Where watched variables are read. One that is compared with the loop's index tells no more than that."""

    def __init__(self, watched: frozenset[str]) -> None:
        self._watched = watched

    def visit_Name(self, node: nodes.Name) -> nodes.Node:  # noqa: N802
        if node.ctx != "load" or node.name not in self._watched:
            return node
        return hook("#use", node, nodes.Const(node.name), line=node.lineno)

    def visit_Getattr(self, node: nodes.Getattr) -> nodes.Node:  # noqa: N802
        name = self._name(node)
        if name is None:
            return self.generic_visit(node)
        return hook("#use", node, nodes.Const(name), line=node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        if len(node.ops) == 1 and node.ops[0].op in _COMPARED:
            left, right, operator = node.expr, node.ops[0].expr, node.ops[0].op
            if _is_index(right):
                left, right, operator = right, left, _TURNED[operator]
            name = self._name(right)
            if _is_index(left) and name is not None:
                return hook("#than", left, nodes.Const(operator), right, nodes.Const(name), line=node.lineno)
        return self.generic_visit(node)

    def _name(self, node: nodes.Expr) -> str | None:
        if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
            name = f"{node.node.name}.{node.attr}"
        elif isinstance(node, nodes.Name):
            name = node.name
        else:
            return None
        return name if name in self._watched else None


def _is_index(node: nodes.Expr) -> bool:
    if not (isinstance(node, nodes.Getattr) and node.attr in ("index", "index0")):
        return False
    return isinstance(node.node, nodes.Name) and node.node.name == _LOOP
