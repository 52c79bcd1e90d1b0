"""A list of the Kubernetes API and the events that follow it, as the objects that there are now (pure)."""

from typing import Generic, TypeVar

import msgspec
from msgspec import Raw, Struct, field

T = TypeVar("T")
MOST_OBJECTS = 20_000


class ExpiredError(Exception):
    """The API server does not know what came after the last version that was seen: all must be listed anew."""


class ContentError(Exception):
    """What it says cannot be understood."""


class _ListMeta(Struct, rename="camel"):
    resource_version: str = ""
    more: str = field(default="", name="continue")


class _Page(Struct):
    metadata: _ListMeta
    items: list[Raw] | None = None


class _Event(Struct):
    type: str
    object: Raw


class _Meta(Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""


class _Named(Struct):
    metadata: _Meta


class _Status(Struct):
    code: int = 0
    message: str = ""


_page = msgspec.json.Decoder(_Page).decode
_event = msgspec.json.Decoder(_Event).decode
_named = msgspec.json.Decoder(_Named).decode
_status = msgspec.json.Decoder(_Status).decode
_FAULTS = (msgspec.DecodeError, UnicodeDecodeError)


class Store(Generic[T]):
    """`items` by name, of a type that has what is needed of an object; never changed, only replaced. `version`: up to
    where events are known; empty before the first list. `odd`: objects that could not be read, and are left out."""

    def __init__(self, kind: type[T]) -> None:
        self.items: dict[str, T] = {}
        self.version = ""
        self.odd = 0
        self._decode = msgspec.json.Decoder(kind).decode
        self._listing: dict[str, T] = {}

    def __repr__(self) -> str:
        return f"<Store of {len(self.items)} at {self.version or 'nothing'}>"

    def begin(self) -> None:
        """A list begins."""
        self._listing = {}

    def page(self, body: bytes) -> str:
        """One page of it; what asks for the next one, empty at the last, with which the list is in force. Raises
        `ContentError`."""
        try:
            page = _page(body)
        except _FAULTS as error:
            raise ContentError(f"a list that cannot be read: {error}") from error
        for item in page.items or ():
            self._take(self._listing, bytes(item))
        if len(self._listing) > MOST_OBJECTS:
            raise ContentError(f"more than {MOST_OBJECTS} objects: narrow the selector")
        if not page.metadata.more:
            self.items, self.version = self._listing, page.metadata.resource_version
        return page.metadata.more

    def event(self, line: bytes) -> bool:
        """One line of a watch. Returns whether objects changed. Raises `ExpiredError`, `ContentError`."""
        try:
            event = _event(line)
            body = bytes(event.object)
            if event.type == "ERROR":
                self._refused(_status(body))
            meta = _named(body).metadata
        except _FAULTS as error:
            raise ContentError(f"an event that cannot be read: {error}") from error
        if event.type != "BOOKMARK":
            items = dict(self.items)
            items.pop(meta.name, None)
            if event.type != "DELETED":
                self._take(items, body)
            if len(items) > MOST_OBJECTS:
                raise ContentError(f"more than {MOST_OBJECTS} objects: narrow the selector")
            self.items = items
        self.version = meta.resource_version or self.version
        return event.type != "BOOKMARK"

    def expire(self) -> None:
        """List anew; what is known stays until then."""
        self.version = ""

    def _take(self, items: dict[str, T], body: bytes) -> None:
        try:
            items[_named(body).metadata.name] = self._decode(body)
        except _FAULTS:
            self.odd += 1

    def _refused(self, status: _Status) -> None:
        if status.code == 410:
            raise ExpiredError(status.message)
        raise ContentError(f"the watch was refused: {status.code} {status.message}")
