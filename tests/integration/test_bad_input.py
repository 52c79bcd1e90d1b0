"""What a careless or hostile caller sends: an OpenAI-shaped error with the right status, quickly, and nothing else."""

import asyncio
import json
import time
from typing import Any

from forebay.platform.tenancy.principal import Scope
from tests.doubles.engine.server import EngineDouble
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.door import MODEL, Door

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
QUICK_S = 2.0


def chat(**members: Any) -> bytes:
    return json.dumps({"model": MODEL, "messages": HELLO, "max_tokens": 2, **members}).encode()


CASES: list[tuple[str, bytes, int, str, str | None]] = [
    ("no json", b"hello", 400, "invalid_json", None),
    ("empty body", b"", 400, "invalid_json", None),
    ("cut json", chat()[:-5], 400, "invalid_json", None),
    ("trailing", chat() + b"x", 400, "invalid_json", None),
    ("an array", b"[]", 400, "invalid_json", None),
    ("null", b"null", 400, "invalid_json", None),
    ("byte order mark", b"\xef\xbb\xbf" + chat(), 400, "invalid_json", None),
    ("invalid utf-8", chat().replace(b"hello", b"\xff\xfe"), 400, "invalid_json", None),
    ("lone surrogate", chat().replace(b"hello", b"\\ud800"), 400, "invalid_json", None),
    ("duplicate key", chat()[:-1] + b',"model":"other"}', 400, "invalid_json", None),
    ("twice, nested", chat().replace(b'"role": "user"', b'"role":"user","role":"system"'), 400, "invalid_json", None),
    ("deep nesting", b'{"model":' + b"[" * 100_000, 400, "invalid_json", None),
    ("NaN", chat().replace(b'"max_tokens": 2', b'"temperature":NaN'), 400, "invalid_json", None),
    ("no model", json.dumps({"messages": HELLO}).encode(), 400, "missing_required_parameter", "model"),
    ("no messages", json.dumps({"model": MODEL}).encode(), 400, "missing_required_parameter", "messages"),
    ("model is a number", chat(model=5), 400, "invalid_type", "model"),
    ("messages is text", chat(messages="hi"), 400, "invalid_type", "messages"),
    ("no message", chat(messages=[]), 400, "empty_array", "messages"),
    ("10,000 messages", chat(messages=HELLO * 10_000), 400, "array_above_max_length", "messages"),
    ("a message is text", chat(messages=["hi"]), 400, "invalid_type", "messages[0]"),
    ("unknown role", chat(messages=[{"role": "king", "content": "x"}]), 400, "invalid_value", "messages[0].role"),
    ("content a number", chat(messages=[{"role": "user", "content": 5}]), 400, "invalid_type", "messages[0].content"),
    ("stream is text", chat(stream="yes"), 400, "invalid_type", "stream"),
    ("negative max_tokens", chat(max_tokens=-1), 400, "invalid_value", "max_tokens"),
    ("huge max_tokens", chat(max_tokens=10**40), 400, "invalid_value", "max_tokens"),
    ("fractional max_tokens", chat(max_tokens=1.5), 400, "invalid_type", "max_tokens"),
    ("infinite temperature", chat().replace(b'"max_tokens": 2', b'"temperature":1e999'), 400, "invalid_value",
     "temperature"),
    ("temperature 3", chat(temperature=3), 400, "invalid_value", "temperature"),
    ("n 1000", chat(n=1000), 400, "invalid_value", "n"),
    ("unknown tier", chat(service_tier="gold"), 400, "invalid_value", "service_tier"),
    ("misspelt", chat(temprature=1), 400, "unknown_parameter", "temprature"),
    ("server-side request", chat(api_base="http://10.0.0.1"), 400, "unknown_parameter", "api_base"),
    ("unsupported", chat(audio={}), 400, "unsupported_parameter", "audio"),
    ("stream_options without stream", chat(stream_options={"include_usage": True}), 400, "invalid_value",
     "stream_options"),
    ("unknown model", chat(model="gpt-9"), 404, "model_not_found", "model"),
    ("over-long prompt", chat(messages=[{"role": "user", "content": "word " * 20_000}]), 400,
     "context_length_exceeded", "messages"),
    ("more tokens than the context", chat(max_tokens=1_000_000), 400, "context_length_exceeded", "messages"),
]  # fmt: skip


async def test_every_bad_body_gets_its_error_and_the_next_request_works(open_door: OpenDoor) -> None:
    wrong = []
    async with EngineDouble() as engine, open_door(engine) as door:
        for name, body, status, code, param in CASES:
            began = time.perf_counter()
            response = await door.http.post(CHAT, content=body, headers={"content-type": "application/json"})
            took = time.perf_counter() - began
            error = response.json()["error"]
            if (response.status_code, error["code"], error["param"]) != (status, code, param) or took > QUICK_S:
                wrong.append((name, response.status_code, error, round(took, 2)))
            assert isinstance(error["message"], str)
            assert error["type"] == "invalid_request_error", error
            assert response.headers["x-request-id"].startswith("req_")
        assert wrong == []
        assert (await door.chat(max_tokens=1)).status_code == 200


async def test_keys(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        tenancy = door.service.tenancy
        admin = (await tenancy.create_admin_key()).secret
        reader = await door.new_key(scopes=(Scope.USAGE_READ,))
        unknown = door.key[:-4] + ("aaaa" if not door.key.endswith("aaaa") else "bbbb")
        cases: list[tuple[str | None, int, str]] = [
            (None, 401, "invalid_api_key"),
            ("", 401, "invalid_api_key"),
            ("Bearer", 401, "invalid_api_key"),
            ("Basic Zm9v", 401, "invalid_api_key"),
            (f"Bearer {unknown}", 401, "invalid_api_key"),
            ("Bearer " + "x" * 8000, 401, "invalid_api_key"),
            (f"Bearer {admin}", 403, "insufficient_scope"),
            (f"Bearer {reader}", 403, "insufficient_scope"),
        ]
        for header, status, code in cases:
            headers = {"content-type": "application/json"}
            async with asyncio.timeout(5):
                client = door.http
                client.headers.pop("authorization", None)
                if header is not None:
                    headers["authorization"] = header
                response = await client.post(CHAT, content=chat(), headers=headers)
            assert (response.status_code, response.json()["error"]["code"]) == (status, code), header
            for secret in (unknown, admin, reader):
                assert secret not in response.text
        response = await door.http.post(CHAT, content=chat(), headers={"x-api-key": door.key})
        assert response.status_code == 200
        for path in ("/admin/v1/tenants", "/v1/models", "/v1/organization/usage/completions?start_time=1"):
            refused = await door.http.get(path)
            assert refused.status_code == 401, path
            assert refused.json()["error"]["code"] == "invalid_api_key"
        forbidden = await door.http.get("/admin/v1/tenants", headers={"authorization": f"Bearer {door.key}"})
        assert forbidden.status_code == 403


async def test_content_types_methods_and_unknown_urls(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        for content_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
            response = await door.http.post(CHAT, content=chat(), headers={"content-type": content_type})
            assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_media_type")
        response = await door.http.post(
            CHAT, content=chat(), headers={"content-type": "application/json", "content-encoding": "gzip"}
        )
        assert response.status_code == 415
        assert (await door.http.get(CHAT)).json()["error"]["code"] == "method_not_allowed"
        for path in ("/v1/nothing", "/tokenize", "/inference/v1/generate", "/v1/models/unknown", "/pause"):
            response = await door.http.get(path)
            assert response.status_code == 404, path
            assert set(response.json()["error"]) >= {"message", "type", "param", "code"}
        charset = await door.http.post(
            CHAT, content=chat(), headers={"content-type": "application/json; charset=utf-8"}
        )
        assert charset.status_code == 200


async def test_a_body_over_the_limit_is_refused_whether_declared_or_not(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine, server={"bodyLimit": 100_000}) as door:
        big = chat(messages=[{"role": "user", "content": "x" * 200_000}])
        head = (
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {door.key}\r\ncontent-type: application/json\r\n"
        )
        declared = await raw(door, f"{head}content-length: {len(big)}\r\n\r\n".encode() + big[:10])
        chunk = f"{len(big):x}\r\n".encode() + big + b"\r\n0\r\n\r\n"
        chunked = await raw(door, f"{head}transfer-encoding: chunked\r\n\r\n".encode() + chunk)
        for answer in (declared, chunked):
            assert answer.startswith(b"HTTP/1.1 413 "), answer[:200]
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_too_large"
        assert (await door.chat(max_tokens=1)).status_code == 200


async def test_a_stranger_is_refused_before_his_body_is_read(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        answer = await raw(door, f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 30000000\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 401 ")


async def test_a_project_is_bounded_and_others_are_not_touched(open_door: OpenDoor) -> None:
    slow = EngineDouble(token_seconds=0.02, answer_tokens=None)
    async with slow as engine, open_door(engine, server={"maxInFlightPerProject": 3, "maxInFlight": 100}) as door:
        running = [asyncio.create_task(door.chat(max_tokens=60)) for _ in range(3)]
        await eventually(lambda: engine.scheduler.in_flight == 3)
        refused = await door.chat(max_tokens=1)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "concurrency_limit_exceeded"
        assert int(refused.headers["retry-after"]) >= 1
        other = await door.http.post(
            CHAT,
            content=chat(),
            headers={"authorization": f"Bearer {await door.new_key()}", "content-type": "application/json"},
        )
        assert other.status_code == 200
        assert {(await task).status_code for task in running} == {200}
        assert (await door.chat(max_tokens=1)).status_code == 200


async def test_models_are_a_tenants_view(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        mine = (await door.http.get("/v1/models")).json()
        assert [model["id"] for model in mine["data"]] == [MODEL, "alias"]
        assert (await door.openai.models.retrieve("alias")).id == "alias"
        key = await door.new_key(models=[])
        headers = {"authorization": f"Bearer {key}"}
        assert (await door.http.get("/v1/models", headers=headers)).json()["data"] == []
        assert (await door.http.get(f"/v1/models/{MODEL}", headers=headers)).status_code == 404
        assert (
            await door.http.post(CHAT, content=chat(), headers={**headers, "content-type": "application/json"})
        ).json()["error"]["code"] == "model_not_found"


async def raw(door: Door, data: bytes) -> bytes:
    """What comes back for these bytes on a connection of their own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", door.service.config.server.port)
    try:
        writer.write(data)
        async with asyncio.timeout(5):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            return head + await reader.readexactly(length)
    finally:
        writer.close()
