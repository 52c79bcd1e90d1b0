"""From bytes to an allow-listed request: what passes, what is named as wrong, and what names a conversation."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.platform.api.requests import Inference, decode
from forebay.platform.errors import ApiError

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, width=32)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=20,
)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def chat(**members: Any) -> Inference:
    return decode("chat.completions", json.dumps({**CHAT, **members}).encode())


def refused(api: str, **members: Any) -> tuple[str, str | None]:
    with pytest.raises(ApiError) as caught:
        decode(api, json.dumps(members).encode())
    assert caught.value.status == 400
    return caught.value.code, caught.value.param


def test_members_pass_as_they_came() -> None:
    tools = [{"type": "function", "function": {"name": "f"}, "x_vendor": {"a": [1.5, None]}}]
    found = chat(tools=tools, tool_choice="auto", response_format={"type": "json_object"}, seed=7, top_k=3, stop=["a"])
    assert found.forward == {
        "messages": CHAT["messages"], "tools": tools, "tool_choice": "auto", "response_format": {"type": "json_object"},
        "seed": 7, "top_k": 3, "stop": ["a"],
    }  # fmt: skip


def test_null_is_absent() -> None:
    assert chat(temperature=None, stop=None, tools=None).forward == {"messages": CHAT["messages"]}


@pytest.mark.parametrize("name", ["cache_salt", "priority", "kv_transfer_params", "rid", "chat_template", "session_id"])
def test_what_only_the_server_sets_is_dropped(name: str) -> None:
    assert name not in chat(**{name: "x"}).forward


@pytest.mark.parametrize("name", ["user", "metadata", "store", "safety_identifier", "service_tier", "prompt_cache_key"])
def test_what_changes_nothing_at_an_engine_is_accepted(name: str) -> None:
    value: Any = {"metadata": {"a": "b"}, "store": False, "service_tier": "auto"}.get(name, "x")
    assert chat(**{name: value}).forward == {"messages": CHAT["messages"]}


@given(st.dictionaries(st.text(max_size=12), JSON, max_size=5), st.sampled_from(["chat.completions", "completions"]))
def test_no_body_is_anything_but_a_request_or_a_400(members: dict[str, Any], api: str) -> None:
    for body in (members, {**CHAT, **members}, {"model": "m", "prompt": members.get("prompt", "x"), **members}):
        try:
            decode(api, json.dumps(body).encode())
        except ApiError as error:
            assert error.status == 400
            json.loads(error.body())


@given(st.binary(max_size=60))
def test_no_bytes_are_anything_but_a_400(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        decode("chat.completions", body)
    assert caught.value.status == 400


@pytest.mark.parametrize(("prompt", "count"), [
    ("text", 1), (["a", "b", "c"], 3), ([1, 2, 3], 1), ([[1, 2], [3]], 2), ([0], 1),
])  # fmt: skip
def test_prompts_are_counted(prompt: Any, count: int) -> None:
    assert decode("completions", json.dumps({"model": "m", "prompt": prompt}).encode()).prompts == count


@pytest.mark.parametrize("prompt", [[], [[]], ["a", 1], [1, "a"], [-1], [True], [[1], "a"], [1.5], [None], [{}]])
def test_other_prompts_are_refused(prompt: Any) -> None:
    code, param = refused("completions", model="m", prompt=prompt)
    assert code in ("invalid_type", "empty_array")
    assert param == "prompt"


def test_answers_are_bounded() -> None:
    assert refused("completions", model="m", prompt=["a"] * 100, n=2) == ("invalid_value", "n")


def test_a_misspelt_member_is_named_with_the_right_one() -> None:
    with pytest.raises(ApiError, match="Did you mean 'temperature'"):
        chat(temprature=1)


def test_text_only_modalities_are_what_we_do_anyway() -> None:
    assert "modalities" not in chat(modalities=["text"]).forward
    assert refused("chat.completions", **CHAT, modalities=["text", "audio"])[0] == "unsupported_parameter"


def test_a_conversation_keeps_its_affinity_as_it_grows() -> None:
    opening = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    later = [*opening, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "more"}]
    assert chat(messages=opening).affinity == chat(messages=later).affinity
    other = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "bonjour"}]
    assert chat(messages=opening).affinity != chat(messages=other).affinity
    assert chat(messages=opening, prompt_cache_key="k").affinity == chat(messages=other, prompt_cache_key="k").affinity


def test_work_grows_with_the_prompt_and_the_answers() -> None:
    small, large = chat(), chat(messages=[{"role": "user", "content": "x" * 4000}])
    assert large.work.prompt_tokens > small.work.prompt_tokens + 900
    assert chat(n=3, max_tokens=10).work.output_tokens == 30
    assert chat(max_tokens=10**6).work.output_tokens == chat().work.output_tokens
