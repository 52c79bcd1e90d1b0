"""What a message's parts may hold (pure). Engines fetch what a URL names from inside the operator's network, look media
up by `uuid` in a cache that all tenants share, and unpickle tensors; so media come as `data:` URLs only.

Source: vLLM 0.32, renderers/chat_utils.py.
"""

from typing import Any

from forebay.platform.errors import ApiError, invalid

_TENSORS = frozenset({"image_embeds", "audio_embeds", "video_embeds", "prompt_embeds", "image_pil"})
_REFUSED = _TENSORS | {"uuid"}


def check(parts: list[dict[str, Any]], path: str) -> None:
    """Raises `ApiError` (400) that names the part at fault; `path` is that of `parts`."""
    for number, part in enumerate(parts):
        at = f"{path}[{number}]"
        if part.get("type") in _TENSORS:
            raise _unsupported(f"{at}.type")
        for name, value in part.items():
            if name in _REFUSED:
                raise _unsupported(f"{at}.{name}")
            if name.endswith("_url"):
                _check_url(value, f"{at}.{name}")


def _check_url(value: Any, at: str) -> None:
    url = value.get("url") if isinstance(value, dict) else value
    if not isinstance(url, str) or not url.startswith("data:"):
        raise invalid(
            f"Invalid '{at}': media are accepted as base64 'data:' URLs only.", param=at, code="invalid_value"
        )


def _unsupported(at: str) -> ApiError:
    return invalid(f"Unsupported parameter: '{at}' is not supported by this service.", param=at,
                   code="unsupported_parameter")  # fmt: skip
