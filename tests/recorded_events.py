"""KV events captured from a live SGLang, where this machine has them (they are never committed)."""

import json
from pathlib import Path
from typing import Any

CAPTURE = Path(__file__).resolve().parents[2] / "shared" / "sglang_cpu" / "captures" / "kv_events.jsonl"


def captured() -> list[Any]:
    """Batches as msgpack decodes them: `[ts, events, rank]`."""
    return [json.loads(line)["decoded"] for line in CAPTURE.read_text().splitlines()]
