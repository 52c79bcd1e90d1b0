"""Bodies of the admin API, read strictly.

Litestar would take texts for what they might mean, "null" for null, and null means unlimited, for ever, or everything.
"""

from typing import Any, TypeVar

import msgspec
from litestar import Request
from litestar.di import Provide
from msgspec import Struct

from forebay.platform.api.requests import parse
from forebay.platform.api.wording import explain
from forebay.platform.config.nearest import nearest
from forebay.platform.errors import invalid

T = TypeVar("T", bound=Struct)


def read(body: bytes, kind: type[T]) -> T:
    """Raises `ApiError` 400."""
    members = parse(body)
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    for name in members:
        if name not in known:
            near = nearest(name, known)
            hint = f"Did you mean '{near}'?" if near else f"The parameters are {', '.join(known)}."
            raise invalid(f"Unknown parameter: '{name[:64]}'. {hint}", param=name[:64], code="unknown_parameter")
    try:
        return msgspec.convert(members, kind)
    except msgspec.ValidationError as error:
        raise explain(str(error)) from None


def body_of(kind: type[Struct]) -> dict[str, Provide]:
    """For a handler's `dependencies`: its parameter `given` is the body, as a `kind`."""

    async def given(request: Request[Any, Any, Any]) -> Any:
        return read(await request.body(), kind)

    return {"given": Provide(given)}
