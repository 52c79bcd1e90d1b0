"""Reads a template's structure: where its loop over the messages is, and what passes through it.

A rendering can go on in the middle of that loop when what the template keeps there is known: the variables that were
set before the loop (the opening) and are read in it or after it, and what is in its namespaces. Assignments within the
loop end with each turn of it, except those to namespaces. What is decided here is whether it is worth trying, and what
to watch; whether a text may be relied on is decided by watching (causal_run.py).
"""

from collections.abc import Iterable, Iterator

from jinja2 import nodes
from msgspec import Struct

from forebay.router.prompt.causal_loop import OF_LOOPS


class Plan(Struct, frozen=True):
    """`main`: index of the loop among the template's statements. `aliases`: variables that may hold the messages.
    `names`: variables set in the opening that are read later. `watched`: those (`name`, or `name.attribute`) that may
    depend on the whole conversation. `changed`: what the loop assigns in namespaces; None if that cannot be told.
    `steady`: numbers of the opening's statements that only write, and read nothing that others set. `tooled`: those
    that read the tools, or -1 for what comes after them."""

    main: int
    looped: bool
    aliases: frozenset[str]
    names: frozenset[str]
    watched: frozenset[str]
    changed: frozenset[tuple[str, str]] | None
    steady: frozenset[int]
    tooled: frozenset[int]


def plan(tree: nodes.Template) -> Plan | None:
    """None for a template that is only rendered whole."""
    aliases = _aliases(tree)
    loops = [place for place, node in enumerate(tree.body) if isinstance(node, nodes.For) and _over(node.iter, aliases)]
    if not loops:
        return None
    place = loops[-1]
    main = tree.body[place]
    assert isinstance(main, nodes.For)
    opening, ending = tree.body[:place], tree.body[place + 1 :]
    if main.recursive or main.test is not None or main.else_ or not isinstance(main.target, nodes.Name):
        return None
    macros = [node for node in opening if isinstance(node, nodes.Macro)]
    if sum(1 for _ in tree.find_all(nodes.Macro)) != len(macros) or any(True for _ in _bare_loops(main.body)):
        return None
    set_there = _stored(opening)
    called = {macro.name for macro in macros}
    read = _read([main, *ending, *macros])
    if called & set_there or len(called) < len(macros) or "self" in read:
        return None
    risky = _risky(opening, aliases)
    turns: list[nodes.Node] = [*main.body, *macros]
    changes = {(ref.name, ref.attr) for node in turns for ref in node.find_all(nodes.NSRef)}
    return Plan(
        place,
        _uses_loop(main.body),
        aliases,
        frozenset(set_there & read),
        frozenset(risky - {f"{name}.{attribute}" for name, attribute in changes}) - _bare(turns, risky),
        frozenset(changes) if {name for name, _ in changes} <= set_there else None,
        _steady(opening, set_there, called, _read(macros)),
        _readers("tools", opening) | ({-1} if "tools" in read else set()),
    )


def counted_messages(node: nodes.Node, aliases: frozenset[str]) -> tuple[nodes.Name, str, nodes.Const] | None:
    """The variable, operator and number of `messages | length > 1` and the like."""
    if not (isinstance(node, nodes.Compare) and len(node.ops) == 1 and isinstance(node.expr, nodes.Filter)):
        return None
    counted, operand = node.expr, node.ops[0]
    if counted.name not in ("length", "count") or not isinstance(counted.node, nodes.Name):
        return None
    bound = operand.expr
    if counted.node.name in aliases and isinstance(bound, nodes.Const) and type(bound.value) is int:
        return counted.node, operand.op, bound
    return None


def loop_names(body: Iterable[nodes.Node]) -> Iterator[nodes.Name]:
    """Where `loop` is read in a loop's body and means that loop."""
    for node in body:
        if isinstance(node, nodes.Name):
            if node.name == "loop":
                yield node
        elif isinstance(node, nodes.For):
            yield from loop_names([node.iter, *node.else_])
        else:
            yield from loop_names(node.iter_child_nodes())


def _uses_loop(body: list[nodes.Node]) -> bool:
    return next(loop_names(body), None) is not None


def _bare_loops(body: list[nodes.Node]) -> Iterator[nodes.Name]:
    """Where `loop` is anything else than the owner of a known attribute."""
    owners = set()
    for node in body:
        for access in node.find_all((nodes.Getattr, nodes.Getitem)) if not _is_access(node) else [node]:
            assert isinstance(access, nodes.Getattr | nodes.Getitem)
            name = access.attr if isinstance(access, nodes.Getattr) else _constant(access.arg)
            if name in OF_LOOPS:
                owners.add(id(access.node))
    yield from (name for name in loop_names(body) if id(name) not in owners)


def _is_access(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Getattr | nodes.Getitem)


def _constant(node: nodes.Expr) -> object:
    return node.value if isinstance(node, nodes.Const) else None


def _aliases(tree: nodes.Template) -> frozenset[str]:
    names = {"messages"}
    while True:
        found = {
            assign.target.name
            for assign in tree.find_all(nodes.Assign)
            if isinstance(assign.target, nodes.Name) and _over(assign.node, names)
        }
        if found <= names:
            return frozenset(names)
        names |= found


def _over(node: nodes.Node, names: set[str] | frozenset[str]) -> bool:
    """Whether an expression is the messages, or those from one on."""
    if isinstance(node, nodes.CondExpr):
        return _over(node.expr1, names) and node.expr2 is not None and _over(node.expr2, names)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return node.arg.stop is None and node.arg.step is None and _over(node.node, names)
    return isinstance(node, nodes.Name) and node.name in names


def _stored(statements: Iterable[nodes.Node]) -> set[str]:
    """Variables that statements set in their own scope."""
    names: set[str] = set()
    for node in statements:
        if isinstance(node, nodes.Assign | nodes.AssignBlock):
            targets = [node.target, *node.target.find_all(nodes.Name)]
            names |= {target.name for target in targets if isinstance(target, nodes.Name)}
        elif isinstance(node, nodes.If):
            names |= _stored([*node.body, *node.elif_, *node.else_])
    return names


def _read(statements: Iterable[nodes.Node]) -> set[str]:
    read = set()
    for node in statements:
        for name in node.find_all((nodes.Name, nodes.NSRef)):
            assert isinstance(name, nodes.Name | nodes.NSRef)
            if isinstance(name, nodes.NSRef) or name.ctx == "load":
                read.add(name.name)
    return read


def _readers(name: str, opening: list[nodes.Node]) -> frozenset[int]:
    return frozenset(place for place, node in enumerate(opening) if name in _read([node]))


def _steady(opening: list[nodes.Node], set_there: set[str], called: set[str], macros_read: set[str]) -> frozenset[int]:
    steady = set()
    for place, node in enumerate(opening):
        read = _read([node])
        if read & called:
            read |= macros_read
        writes = isinstance(node, nodes.Output | nodes.If | nodes.For) and not _stored([node])
        if writes and node.find(nodes.NSRef) is None and not read & set_there:
            steady.add(place)
    return frozenset(steady)


def _risky(opening: list[nodes.Node], aliases: frozenset[str]) -> set[str]:
    """What statements that may look at the whole conversation assign, and those that read that."""
    risky: set[str] = set()
    while True:
        before = len(risky)
        for node in opening:
            if _scans(node, aliases) or _read([node]) & {name.partition(".")[0] for name in risky}:
                risky |= _stored([node])
                risky |= {f"{ref.name}.{ref.attr}" for ref in node.find_all(nodes.NSRef)}
                risky |= _namespaced(node)
        if len(risky) == before:
            return risky - aliases


def _namespaced(node: nodes.Node) -> set[str]:
    """`name.attribute` for the attributes that a namespace is made with."""
    made = set()
    for assign in [node, *node.find_all(nodes.Assign)]:
        if isinstance(assign, nodes.Assign) and isinstance(assign.target, nodes.Name):
            value = assign.node
            if isinstance(value, nodes.Call) and isinstance(value.node, nodes.Name) and value.node.name == "namespace":
                made |= {f"{assign.target.name}.{keyword.key}" for keyword in value.kwargs}
    return made


def _scans(node: nodes.Node, aliases: frozenset[str]) -> bool:
    """Whether a statement does more with the messages than read some by their number, or name those from one on."""
    plain = set()
    for access in node.find_all(nodes.Getitem):
        number = access.arg.value if isinstance(access.arg, nodes.Const) else None
        if (type(number) is int and number >= 0) or _over(access, aliases):
            plain.add(id(access.node))
    for assign in [node, *node.find_all(nodes.Assign)]:
        if isinstance(assign, nodes.Assign):
            plain.add(id(assign.node))
    for compare in node.find_all(nodes.Compare):
        if (counted := counted_messages(compare, aliases)) is not None:
            plain.add(id(counted[0]))
    return any(
        name.ctx == "load" and name.name in aliases and id(name) not in plain for name in node.find_all(nodes.Name)
    )


def _bare(turns: list[nodes.Node], risky: set[str]) -> set[str]:
    """Watched attributes of namespaces that are read otherwise than by their name."""
    owners = {name.partition(".")[0] for name in risky if "." in name}
    read_well = set()
    for node in turns:
        for access in [node, *node.find_all(nodes.Getattr)]:
            if isinstance(access, nodes.Getattr):
                read_well.add(id(access.node))
    loose = {
        name.name
        for node in turns
        for name in [node, *node.find_all(nodes.Name)]
        if isinstance(name, nodes.Name) and name.name in owners and id(name) not in read_well
    }
    return {name for name in risky if name.partition(".")[0] in loose}
