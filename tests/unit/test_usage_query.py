from itertools import pairwise
from typing import Any

import pytest

from forebay.platform.api.usage_query import Page, parse
from forebay.platform.errors import ApiError
from tests.metered import T0

DAY = 86400
START = int(T0)


def ask(*, costs: bool = False, now: float = T0 + 10 * DAY, **params: Any) -> Page:
    several = {name: value if isinstance(value, list) else [value] for name, value in params.items()}
    lists = {name: [str(item) for item in values] for name, values in several.items()}
    return parse(lists, tenant="ten_a", apis=("completions",), now=now, costs=costs)


def test_pages_cover_the_time_once_and_the_last_has_no_successor() -> None:
    seen: list[tuple[int, int]] = []
    cursor: dict[str, Any] = {}
    for _ in range(20):
        page = ask(start_time=START + 3600, end_time=START + 9 * DAY + 60, limit=4, **cursor)
        seen += page.buckets
        if page.next_page is None:
            break
        cursor = {"page": page.next_page}
    assert seen[0] == (START + 3600, START + DAY)
    assert seen[1] == (START + DAY, START + 2 * DAY)
    assert seen[-1] == (START + 9 * DAY, START + 9 * DAY + 60)
    assert all(before[1] == after[0] for before, after in pairwise(seen))


def test_without_an_end_the_time_runs_to_now() -> None:
    page = ask(start_time=START, now=T0 + 2 * DAY + 0.5)
    assert page.buckets[-1] == (START + 2 * DAY, START + 2 * DAY + 1)


def test_a_query_is_always_of_the_own_tenant() -> None:
    query = ask(start_time=START, project_ids=["proj_b"], api_key_ids=["key_b"], models=["m"]).query
    assert query is not None
    assert (query.tenants, query.projects, query.keys, query.models) == (("ten_a",), ("proj_b",), ("key_b",), ("m",))


def test_lists_come_in_both_spellings() -> None:
    brackets: dict[str, Any] = {"group_by[]": ["model", "project_id"]}
    assert ask(start_time=START, **brackets).groups == ("model", "project_id")
    assert ask(start_time=START, group_by="model,service_tier").groups == ("model", "service_tier")


def test_filters_for_what_is_never_recorded_find_nothing() -> None:
    assert ask(start_time=START, user_ids=["u"]).query is None
    assert ask(start_time=START, batch="true").query is None
    assert ask(start_time=START, batch="false").query is not None


@pytest.mark.parametrize(("params", "param", "code"), [
    ({}, "start_time", "missing_required_parameter"),
    ({"start_time": "yesterday"}, "start_time", "invalid_request"),
    ({"start_time": "1" * 400}, "start_time", "invalid_request"),
    ({"start_time": "-1"}, "start_time", "invalid_request"),
    ({"start_time": "\u0661"}, "start_time", "invalid_request"),
    ({"start_time": 253_402_300_799}, "start_time", "invalid_request"),
    ({"start_time": START, "end_time": START}, "end_time", "invalid_request"),
    ({"start_time": START, "limit": 32}, "limit", "invalid_request"),
    ({"start_time": START, "limit": 0}, "limit", "invalid_request"),
    ({"start_time": START, "bucket_width": "1w"}, "bucket_width", "invalid_request"),
    ({"start_time": START, "group_by": "tenant_id"}, "group_by", "invalid_request"),
    ({"start_time": START, "group_by": "line_item"}, "group_by", "invalid_request"),
    ({"start_time": START, "page": "page_x"}, "page", "invalid_request"),
    ({"start_time": START, "page": "page_1"}, "page", "invalid_request"),
    ({"start_time": START, "tenant_ids": "ten_b"}, "tenant_ids", "unknown_parameter"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused_by_name(params: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(ApiError) as refused:
        ask(**params)
    assert (refused.value.status, refused.value.code) == (400, code)
    assert f'"param":"{param}"' in refused.value.body().decode()
