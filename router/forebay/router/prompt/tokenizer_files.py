"""What a model directory's files say of its tokenizer beside the vocabulary.

Source: how transformers 5 loads them, read and observed (vLLM 0.32 uses it). `add_bos_token` and `add_eos_token` count
for nothing where there is a tokenizer.json: its post-processor says what is added. `special_tokens_map.json` counts
only where tokenizer_config.json lists no added tokens. A file chat_template.jinja wins over the configuration's.
"""

from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from tokenizers import AddedToken

T = TypeVar("T")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class TokenizerError(ValueError):
    """A tokenizer or a text that cannot be used. The message says why."""


class Normalizer(Struct):
    """How text is changed before it is tokenized. `pattern` is what a `Replace` looks for."""

    type: str
    normalizers: list["Normalizer"] = []
    pattern: dict[str, str] = {}


class TokenizerFile(Struct):
    """What else than the tokenizers library has to know of tokenizer.json."""

    normalizer: Normalizer | None = None


class TokenizerConfig(Struct):
    """`special_tokens`: by the names under which templates know them (`bos_token`, …). `added`: tokens to add to the
    tokenizer, or to change there. `special`: tokens to add where they lack."""

    special_tokens: dict[str, str] = {}
    added: list[AddedToken] = []
    special: list[AddedToken] = []
    chat_template: str | None = None
    split_special_tokens: bool = False


class _Config(Struct):
    added_tokens_decoder: dict[int, dict[str, Any]] | None = None
    additional_special_tokens: list[str | dict[str, Any]] | None = None
    extra_special_tokens: list[str | dict[str, Any]] | dict[str, Any] | None = None
    chat_template: str | list[dict[str, str]] | None = None
    split_special_tokens: bool = False


def read(directory: Path) -> tuple[bytes, TokenizerFile, TokenizerConfig]:
    """The bytes of tokenizer.json, and what the files say. Raises `TokenizerError`."""
    path = directory / "tokenizer.json"
    data = _bytes(path)
    if data is None:
        raise TokenizerError(
            f"There is no {path}, the only format that is read here. "
            "Save the model's tokenizer there with transformers (`save_pretrained`)."
        )
    return data, _decode(data, TokenizerFile, path), _config(directory)


def _config(directory: Path) -> TokenizerConfig:
    path = directory / "tokenizer_config.json"
    data = _bytes(path) or b"{}"
    known = _decode(data, _Config, path)
    named = _decode(data, dict[str, Any], path)
    if known.added_tokens_decoder is None:
        path = directory / "special_tokens_map.json"
        named |= _decode(_bytes(path) or b"{}", dict[str, Any], path)
    named = {name: value for name, value in named.items() if name.endswith("_token")}
    unnamed = list(known.additional_special_tokens or ())
    if isinstance(known.extra_special_tokens, dict):
        named |= known.extra_special_tokens
    else:
        unnamed += known.extra_special_tokens or ()
    special = {name: token for name, value in named.items() if (token := _special(value))}
    return TokenizerConfig(
        special_tokens={name: token.content for name, token in special.items()},
        added=[token for _, value in sorted((known.added_tokens_decoder or {}).items()) if (token := _token(value))],
        special=[*special.values(), *(token for value in unnamed if (token := _special(value)))],
        chat_template=_template(directory, known.chat_template),
        split_special_tokens=known.split_special_tokens,
    )


def _special(value: object) -> AddedToken | None:
    """A special token from its text, or from an object that has it as `content`; None for anything else."""
    if isinstance(value, str) and value:
        return AddedToken(value, special=True, normalized=False)
    return _token(value | {"special": True}) if isinstance(value, dict) else None


def _token(value: dict[str, Any]) -> AddedToken | None:
    content = value.get("content")
    if not isinstance(content, str) or not content:
        return None
    return AddedToken(content, **{name: bool(value[name]) for name in _FLAGS if name in value})


def _template(directory: Path, configured: str | list[dict[str, str]] | None) -> str | None:
    path = directory / "chat_template.jinja"
    data = _bytes(path)
    if data is not None:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise TokenizerError(f"{path} is not UTF-8: {error}.") from error
    if isinstance(configured, list):
        return next((entry.get("template") for entry in configured if entry.get("name") == "default"), None)
    return configured


def _bytes(path: Path) -> bytes | None:
    """None for a file that is not there."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read: {error.strerror}.") from error


def _decode(data: bytes, kind: type[T], path: Path) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise TokenizerError(f"{path} does not have a tokenizer's shape: {error}.") from error
    except msgspec.DecodeError as error:
        raise TokenizerError(f"{path} is not JSON: {error}.") from error
