"""Reading what engines say: server-sent events and Prometheus text. Works on a real engine and on the double."""

import json
import re
from typing import Any

_SAMPLE = re.compile(r"^(vllm:[a-z_]+)(?:\{([^}]*)\})? ([-+0-9.e]+|inf|nan)$", re.MULTILINE)
_LABEL = re.compile(r'(finished_reason|source|reason)="([^"]*)"')


def events(body: bytes) -> list[Any]:
    """The `data:` payloads of a stream, decoded; "[DONE]" stays a string."""
    payloads = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
    return [payload.decode() if payload == b"[DONE]" else json.loads(payload) for payload in payloads]


def text_of(stream: list[Any]) -> str:
    """The text of a stream's first choice, chat or completion."""
    parts = []
    for event in stream:
        for choice in event["choices"] if isinstance(event, dict) else ():
            if choice["index"] == 0:
                parts.append(choice["delta"].get("content") or "" if "delta" in choice else choice["text"])
    return "".join(parts)


def counters(metrics: str) -> dict[str, float]:
    """Samples by name, with the label that tells its series apart: `vllm:request_success_total/stop`."""
    found: dict[str, float] = {}
    for name, labels, value in _SAMPLE.findall(metrics):
        if name.endswith(("_bucket", "_created")):
            continue
        label = _LABEL.search(labels or "")
        found[f"{name}/{label[2]}" if label else name] = float(value)
    return found


def growth(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What has changed, by how much. Sums of seconds are left out."""
    names = {name for name in after if not name.endswith("_sum")}
    return {name: after[name] - before.get(name, 0) for name in sorted(names) if after[name] != before.get(name, 0)}
