"""msgspec's words about a body turned into OpenAI's, with its codes (pure)."""

import re

from forebay.platform.errors import ApiError, invalid

_PATH = re.compile(r" - at `\$\.?(?P<path>.*)`$")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")
_TYPE = re.compile(r"^Expected `(?P<expected>[^`]*)`, got `(?P<got>[^`]*)`$")
_LENGTH = re.compile(r"^Expected `array` of length (?P<sense><=|>=) (?P<bound>\d+)$")
_ENUM = re.compile(r"^Invalid enum value (?P<value>.*)$", re.DOTALL)
_NAMES = {
    "int": "an integer",
    "str": "a string",
    "bool": "a boolean",
    "float": "a number",
    "array": "an array",
    "object": "an object",
    "null": "null",
}


def explain(message: str) -> ApiError:
    located = _PATH.search(message)
    path = located["path"] if located else ""
    text = _PATH.sub("", message)
    if missing := _MISSING.search(text):
        name = f"{path}.{missing['name']}" if path else missing["name"]
        return invalid(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
    if typed := _TYPE.match(text):
        expected = " or ".join(
            _NAMES.get(t.strip(), t.strip()) for t in typed["expected"].split("|") if t.strip() != "null"
        )
        got = _NAMES.get(typed["got"], typed["got"])
        return invalid(
            f"Invalid type for '{path}': expected {expected}, but got {got} instead.", param=path, code="invalid_type"
        )
    if length := _LENGTH.match(text):
        bound = length["bound"]
        if length["sense"] == ">=":
            return invalid(
                f"Invalid '{path}': empty array. Expected an array with minimum length {bound}.",
                param=path,
                code="empty_array",
            )
        return invalid(
            f"Invalid '{path}': array too long. Expected an array with maximum length {bound}.",
            param=path,
            code="array_above_max_length",
        )
    if enum := _ENUM.match(text):
        return invalid(
            f"Invalid value for '{path}': {enum['value'][:80]} is not one of the values allowed.",
            param=path,
            code="invalid_value",
        )
    return invalid(f"Invalid '{path}': {text[:1].lower()}{text[1:]}.", param=path, code="invalid_value")


def json_type(value: object) -> str:
    kinds = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")
