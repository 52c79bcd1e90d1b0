"""From bytes to an allow-listed request: what passes, and what is named as wrong."""

import json
import time
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
    return decode("chat.completions", json.dumps({**CHAT, **members}).encode())[0]


def forwarded(request: Inference) -> Any:
    return json.loads(request.forward)


def refused(api: str, **members: Any) -> tuple[str, str | None]:
    with pytest.raises(ApiError) as caught:
        decode(api, json.dumps(members).encode())
    assert caught.value.status == 400
    return caught.value.code, caught.value.param


def test_members_pass_as_they_came() -> None:
    tools = [{"type": "function", "function": {"name": "f"}, "x_vendor": {"a": [1.5, None]}}]
    found = chat(tools=tools, tool_choice="auto", response_format={"type": "json_object"}, seed=7, top_k=3, stop=["a"])
    assert forwarded(found) == {
        "messages": CHAT["messages"], "tools": tools, "tool_choice": "auto", "response_format": {"type": "json_object"},
        "seed": 7, "top_k": 3, "stop": ["a"],
    }  # fmt: skip


def test_null_is_absent() -> None:
    assert forwarded(chat(temperature=None, stop=None, tools=None)) == {"messages": CHAT["messages"]}


@pytest.mark.parametrize("name", ["cache_salt", "priority", "kv_transfer_params", "rid", "chat_template", "session_id"])
def test_what_only_the_server_sets_is_dropped(name: str) -> None:
    assert name not in forwarded(chat(**{name: "x"}))


@pytest.mark.parametrize("name", ["user", "metadata", "store", "safety_identifier", "service_tier", "prompt_cache_key"])
def test_what_changes_nothing_at_an_engine_is_accepted(name: str) -> None:
    value: Any = {"metadata": {"a": "b"}, "store": False, "service_tier": "auto"}.get(name, "x")
    assert forwarded(chat(**{name: value})) == {"messages": CHAT["messages"]}


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
    assert decode("completions", json.dumps({"model": "m", "prompt": prompt}).encode())[0].prompts == count


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
    assert "modalities" not in forwarded(chat(modalities=["text"]))
    assert refused("chat.completions", **CHAT, modalities=["text", "audio"])[0] == "unsupported_parameter"


def test_size_grows_with_the_prompt_and_output_with_the_answers() -> None:
    small, large = chat(), chat(messages=[{"role": "user", "content": "x" * 4000}])
    assert large.size > small.size + 900
    assert chat(n=3, max_tokens=10).output == 30
    assert chat(max_tokens=10**6).output == chat().output


@pytest.mark.parametrize("number", ["1e400", "1.0", "0.10", "12345678901234567890123", "-0"])
def test_what_passes_is_not_written_anew(number: str) -> None:
    body = json.dumps({**CHAT, "tools": [{"x": "NUMBER", "y": "\u00e9\n"}]}).replace('"NUMBER"', number)
    forward = decode("chat.completions", body.encode())[0].forward
    assert f'"tools":[{{"x": {number}, "y": "\\u00e9\\n"}}]'.encode() in forward


@pytest.mark.parametrize("many", [[[]] * 140_000, [{}] * 140_000, [1] * 1_100_000], ids=["arrays", "objects", "values"])
def test_a_body_of_very_many_values_is_refused_before_it_is_parsed(many: Any) -> None:
    with pytest.raises(ApiError) as caught:
        chat(tools=[{"x": many}])
    assert (caught.value.status, caught.value.code) == (413, "request_too_large")


@pytest.mark.parametrize(("one", "count"), [
    (r"\u005b]\u002c", 140_000), (r"\u005B]", 140_000), (r"\u007b}", 140_000), (r"1\u002C", 1_100_000)
])  # fmt: skip
def test_values_within_arguments_count_however_they_are_written(one: str, count: int) -> None:
    """They are JSON in a string, parsed for the template: seconds for what 30 MB can hold."""
    call = b'{"id": "a", "type": "function", "function": {"name": "f", "arguments": "%b"}}' % (one * count).encode()
    body = b'{"model": "m", "messages": [{"role": "assistant", "tool_calls": [%b]}]}' % call
    with pytest.raises(ApiError) as caught:
        decode("chat.completions", body)
    assert (caught.value.status, caught.value.code) == (413, "request_too_large")


def test_a_long_name_is_compared_by_its_beginning() -> None:
    began = time.perf_counter()
    assert refused("chat.completions", **CHAT, **{"temperature" * 900_000: 1})[0] == "unknown_parameter"
    assert time.perf_counter() - began < 0.7


@pytest.mark.parametrize("part", [
    {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest/meta-data"}},
    {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
    {"type": "image_url", "image_url": "https://example.com/a.png"},
    {"type": "video_url", "video_url": {"url": " data:x"}},
    {"type": "audio_url", "audio_url": None},
    {"image_url": "http://x", "uuid": "somebody-else's"},
    {"type": "text", "text": "x", "uuid": "u"},
    {"type": "image_embeds", "image_embeds": "AAAA"},
    {"type": "prompt_embeds", "data": "AAAA"},
])  # fmt: skip
def test_parts_that_would_make_an_engine_fetch_share_or_unpickle_are_refused(part: dict[str, Any]) -> None:
    messages = [CHAT["messages"][0], {"role": "user", "content": [{"type": "text", "text": "x"}, part]}]
    code, param = refused("chat.completions", model="m", messages=messages)
    assert code in ("invalid_value", "unsupported_parameter")
    assert param is not None
    assert param.startswith("messages[1].content[1].")


def test_media_in_the_request_pass() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    ]
    messages = [{"role": "user", "content": parts}]
    assert forwarded(chat(messages=messages))["messages"] == messages


def test_a_template_is_the_servers_by_whatever_way_it_comes() -> None:
    assert forwarded(chat(chat_template_kwargs={"enable_thinking": False}))["chat_template_kwargs"]
    for name in ("chat_template", "tokenize"):
        assert refused("chat.completions", **CHAT, chat_template_kwargs={name: "x"}) == (
            "unsupported_parameter", f"chat_template_kwargs.{name}")  # fmt: skip


def test_embeddings_take_as_many_inputs_as_openai() -> None:
    assert refused("embeddings", model="m", input=["a"] * 2049) == ("array_above_max_length", "input")
    assert decode("embeddings", json.dumps({"model": "m", "input": ["a"] * 2048}).encode())[0].prompts == 2048
