"""Words and numbers that the configuration is made of, and what holds for each of its sections.

`extra` carries what only messages need: `expects` says what a right value looks like, `private` keeps values out of
faults.
"""

from datetime import datetime
from decimal import Decimal
from typing import Annotated

from msgspec import Meta, Struct

Name = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}$", extra={"expects": "1 to 128 letters, digits or ._/:-"})
]
Url = Annotated[
    str,
    Meta(
        pattern=r"^https?://[^\s/]+[^\s]*$",
        examples=["http://10.0.0.5:8000"],
        extra={"expects": "an http:// or https:// URL such as http://10.0.0.5:8000"},
    ),
]
ZmqAddress = Annotated[
    str,
    Meta(
        pattern=r"^(tcp://[^\s/*]+:[0-9]{1,5}|ipc://\S+)$",
        extra={"expects": "a ZeroMQ address to connect to, such as tcp://10.0.0.5:5557"},
    ),
]
EnvName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Z_][A-Z0-9_]{0,63}$",
        examples=["ENGINE_API_KEY"],
        extra={"expects": "the name of an environment variable (A-Z, 0-9, _), never the key itself", "private": True},
    ),
]
Text = Annotated[str, Meta(min_length=1)]
Label = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9._/:-]{0,63}$", extra={"expects": "up to 63 letters, digits or ._/:-"})
]
LabelName = Annotated[
    str,
    Meta(
        pattern=r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$",
        extra={"expects": "the name of a label such as forebay.dev/role"},
    ),
]
DnsName = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        extra={"expects": "up to 63 small letters, digits or -"},
    ),
]
Port = Annotated[
    str,
    Meta(
        pattern=r"^([1-9][0-9]{0,4}|[a-z0-9-]*[a-z][a-z0-9-]*)$",
        extra_json_schema={"type": ["string", "integer"]},
        extra={"expects": "a port's number or name"},
    ),
]
_KEY = r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_REQUIREMENT = rf"(!?{_KEY}|{_KEY} *(==?|!=) *[A-Za-z0-9._-]{{0,63}}|{_KEY} +(not)?in +\([A-Za-z0-9._, -]*\))"
Selector = Annotated[
    str,
    Meta(
        pattern=rf"^ *{_REQUIREMENT}( *, *{_REQUIREMENT})* *$",
        extra={"expects": "a label selector such as app=chat-engine,forebay.dev/role in (unified)"},
    ),
]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Price = Annotated[
    Decimal, Meta(extra_json_schema={"pattern": r"^[0-9]{1,9}(\.[0-9]{1,12})?$", "minimum": 0, "maximum": 999_999_999})
]
Instant = Annotated[datetime, Meta(tz=True)]


class Section(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """A mapping of the file."""
