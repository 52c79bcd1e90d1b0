"""Guesses at what a misspelt name was meant to be."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from msgspec import inspect

from forebay.platform.config.faults import Path, show


def nearest(word: str, choices: Sequence[str]) -> str | None:
    """The choice most like `word`, blind to case, `_` and `-`; None if nothing is close."""
    plain = {_plain(choice): choice for choice in choices}
    found = get_close_matches(_plain(word[:200]), plain, n=1, cutoff=0.6)
    return plain[found[0]] if found else None


def _plain(word: str) -> str:
    return word.lower().replace("_", "").replace("-", "")


def meant(word: str, choices: Sequence[str]) -> str | None:
    """A fix that names the nearest choice, if one is near."""
    found = nearest(word, choices)
    return f"did you mean {found}?" if found else None


def where_else(key: str, path: Path, root: inspect.Type) -> str | None:
    """A fix that names the other place where `key` belongs, if there is exactly one such key."""
    here = show(tuple(part for part in path if isinstance(part, str)))
    places = [place for place in _places(root, "") if place.rpartition(".")[2] == key]
    elsewhere = [place for place in places if place.rpartition(".")[0] != here]
    return f"it belongs at {elsewhere[0]}" if len(elsewhere) == 1 else None


def _places(kind: inspect.Type, prefix: str) -> Iterator[str]:
    """Every key of a type, as `pools.endpoints.url`."""
    match kind:
        case inspect.Metadata():
            yield from _places(kind.type, prefix)
        case inspect.UnionType():
            for option in kind.types:
                yield from _places(option, prefix)
        case inspect.VarTupleType():
            yield from _places(kind.item_type, prefix)
        case inspect.StructType():
            for field in kind.fields:
                name = f"{prefix}.{field.encode_name}".removeprefix(".")
                yield name
                yield from _places(field.type, name)
