"""Text to YAML nodes with line numbers, and nodes to plain values.

Values follow YAML 1.2: only `true` and `false` are booleans, `010` is not octal, `1:30` and dates are text. Tags are
refused, aliases and merges (`<<`) are fine.
"""

import re
from collections.abc import Iterator

import yaml

from forebay.platform.config.faults import DocumentError

SIZE_LIMIT = 1 << 20  # bytes
DEPTH_LIMIT = 50  # collections inside one another; the format itself needs 7

# libyaml's messages, unlike those of the Python loader, never quote the document, which may hold a password.
_Loader: type[yaml.CSafeLoader] | type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_QUOTED = re.compile(r"'[\w-]{2,}'")
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")  # longer ones are floats: no key wants them, and int() has limits
_NUMBER = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, bool | None] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_FIXES = {
    "cannot start any token": "indent with spaces, and quote values that begin with a sign such as @, `, % or *",
    "mapping values are not allowed": "check the indentation, and quote values that contain ': '",
    "undefined alias": "define the anchor with &name above, or quote the value if it begins with *",
    "second occurrence": "give each anchor a name of its own",
    "another document": "keep one document in a file",
}


def compose(text: str) -> yaml.Node | None:
    """The document's root, None for an empty document. Raises DocumentError."""
    try:
        _refuse_excess(text)
        root: yaml.Node | None = yaml.compose(text, Loader=_Loader)
        return root
    except yaml.YAMLError as error:
        raise _explained(error, text) from None


def _refuse_excess(text: str) -> None:
    """Refuse what is no text, tags, and deep nesting before anything recurses into it."""
    odd = _UNPRINTABLE.search(text)
    if odd:
        line = text.count("\n", 0, odd.start()) + 1
        raise DocumentError(line, "not valid YAML: it holds a control character", "remove the character")
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if getattr(event, "tag", None):
            raise DocumentError(line, "tags such as !!str or !env are not read", "write the value without the tag")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEPTH_LIMIT:
            raise DocumentError(line, f"nested more than {DEPTH_LIMIT} deep", "remove the extra brackets")


def _explained(error: yaml.YAMLError, text: str) -> DocumentError:
    mark = getattr(error, "problem_mark", None)
    line = mark.line + 1 if mark else 0
    problem = _QUOTED.sub("text", getattr(error, "problem", None) or "it cannot be read")
    fix = next((fix for part, fix in _FIXES.items() if part in problem), "check brackets, quotes and indentation there")
    return DocumentError(min(line, text.count("\n") + 1), f"not valid YAML: {problem}", fix)


def value(node: yaml.ScalarNode) -> str | int | float | bool | None:
    """What a scalar means; text wherever it is quoted."""
    text: str = node.value
    if node.style:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    return text


def entries(node: yaml.MappingNode, depth: int = 0) -> Iterator[tuple[yaml.Node, yaml.Node, bool]]:
    """(key, value, merged) of each entry, those that `<<` merges in last."""
    if depth > DEPTH_LIMIT:
        raise DocumentError(node.start_mark.line + 1, "`<<` merges a mapping into itself", "remove the alias")
    for key, item in node.value:
        if not _merges(key):
            yield key, item, depth > 0
    for key, item in node.value:
        if _merges(key):
            for source in item.value if isinstance(item, yaml.SequenceNode) else [item]:
                if not isinstance(source, yaml.MappingNode):
                    line = key.start_mark.line + 1
                    raise DocumentError(line, "`<<` merges mappings only", "name an anchor: <<: *name")
                yield from entries(source, depth + 1)


def _merges(key: yaml.Node) -> bool:
    return isinstance(key, yaml.ScalarNode) and key.value == "<<" and not key.style
