"""Attempts and records for tests of the metering room."""

from typing import Any

import msgspec

from forebay.metering import Attempt, Quantities, Status, TerminatedBy, UsageRecord

T0 = 1_793_491_200.0  # midnight UTC


def attempt(number: int = 1, **changes: Any) -> Attempt:
    base = Attempt(
        request_id=f"req_{number:032x}", attempt=1, tenant_id="ten_a", project_id="proj_a", key_id="key_a",
        api="chat.completions", model="smol", pool="smol", endpoint="one", engine="vllm", stream=False,
        tier_requested="auto", tier_used="default", price_version="v1", started_at=T0 + number,
    )  # fmt: skip
    return msgspec.structs.replace(base, **changes)


def record(of: Attempt | int = 1, used: Quantities | None = None, **changes: Any) -> UsageRecord:
    of = attempt(of) if isinstance(of, int) else of
    used = Quantities(20, 10, 0, 5, 0) if used is None else used
    base = UsageRecord(
        attempt=of, engine=used, billable=used, status=Status.COMPLETED, terminated_by=TerminatedBy.ENGINE,
        measured=True, ended_at=of.started_at + 0.5, first_byte_s=0.1, finish_reason="stop",
    )  # fmt: skip
    return msgspec.structs.replace(base, **changes)
