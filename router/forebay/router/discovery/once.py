"""What Kubernetes tells of engines now, asked once; for those who want to know whether it would."""

from typing import TypeVar

from forebay.router.discovery.pods import Found, Pod, Rules, Slice, found
from forebay.router.discovery.reflector import AwayError, Source
from forebay.router.discovery.store import ContentError, ExpiredError, Store

T = TypeVar("T")


class LookError(Exception):
    """Why it cannot be told."""


def look(pods: Source, slices: Source | None, rules: Rules) -> Found:
    """Blocks. It lists, and begins a watch, as whoever follows them does. Raises `LookError`."""
    known = _listed("pods", pods, Pod)
    return found(known, None if slices is None else _listed("endpoint slices", slices, Slice).values(), rules)


def _listed(what: str, source: Source, kind: type[T]) -> dict[str, T]:
    store = Store(kind)
    doing = "listed"
    try:
        store.begin()
        token = store.page(source.page(""))
        while token:
            token = store.page(source.page(token))
        doing = "watched"
        source.watch(store.version).close()
    except (AwayError, ContentError, ExpiredError) as error:
        raise LookError(f"the {what} cannot be {doing}: {error}") from error
    return store.items
