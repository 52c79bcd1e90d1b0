"""The published JSON Schema of `forebay.yaml`, from the same structs that read it."""

import json
from typing import Any

import msgspec

from forebay.platform.config.model import Config

ID = "https://forebay.dev/schema/v1.json"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Draft 2020-12: types, bounds and meaning of each key. `forebay config check` knows rules beyond it."""
    (_, definitions) = msgspec.json.schema_components([Config], ref_template="#/$defs/{name}")
    root: dict[str, Any] = _exact(definitions.pop("Config"))
    definitions["Pool"]["anyOf"] = [{"required": ["endpoints"]}, {"required": ["discovery"]}]
    head = {"$schema": DIALECT, "$id": ID, "title": "forebay.yaml", "description": root["description"]}
    return head | {key: part for key, part in root.items() if key not in head} | {"$defs": _exact(definitions)}


def text() -> str:
    """The schema as it is published."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _exact(part: Any) -> Any:
    """Prices may be whole numbers too, which msgspec's schema for Decimal leaves out. An empty `required` is noise."""
    if isinstance(part, list):
        return [_exact(item) for item in part]
    if not isinstance(part, dict):
        return part
    exact = {key: _exact(item) for key, item in part.items() if not (key == "required" and item == [])}
    if exact.get("format") == "decimal":
        del exact["format"]
        exact["type"] = ["string", "integer"]
    return exact
