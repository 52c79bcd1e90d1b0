"""The routes beside generation: what an engine says of itself, and the double's own `/_double/…`."""

import os
import time
from typing import TYPE_CHECKING, Any

import msgspec

from tests.doubles.engine import frames, tokens
from tests.doubles.engine.errors import WireError
from tests.doubles.engine.faults import Fault
from tests.doubles.engine.protocol import Connection, Request
from tests.doubles.engine.validation import check_model, parse_body

if TYPE_CHECKING:
    from tests.doubles.engine.server import EngineDouble, Handler

_SCALE_OUT = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."


class Routes:
    def __init__(self, engine: "EngineDouble") -> None:
        self._engine = engine
        self._settings = engine.settings

    def table(self) -> "dict[tuple[str, str], Handler]":
        table: dict[tuple[str, str], Handler] = {
            ("GET", "/v1/models"): self._models,
            ("GET", "/health"): self._empty,
            ("GET", "/ping"): self._empty,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/version"): self._version,
            ("POST", "/inference/v1/abort_requests"): self._abort,
            ("POST", "/reset_prefix_cache"): self._reset,
            ("POST", "/_double/faults"): self._add_faults,
            ("GET", "/_double/faults"): self._list_faults,
            ("DELETE", "/_double/faults"): self._clear_faults,
            ("GET", "/_double/requests"): self._list_requests,
            ("DELETE", "/_double/requests"): self._clear_requests,
        }
        if self._settings.tokenize:
            table["POST", "/tokenize"] = self._tokenize
        if self._settings.embeddings:
            table["POST", "/v1/embeddings"] = self._embeddings
        return table

    def _empty(self, request: Request, connection: Connection, fault: Fault | None) -> None:
        connection.respond(200, b"", b"")

    def _version(self, request: Request, connection: Connection, fault: Fault | None) -> None:
        connection.respond(200, b'{"version":"0.32.0"}')

    def _models(self, request: Request, connection: Connection, fault: Fault | None) -> None:
        created = int(time.time())
        permission = {
            "id": "modelperm-" + os.urandom(8).hex(), "object": "model_permission", "created": created,
            "allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True,
            "allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False, "organization": "*",
            "group": None, "is_blocking": False,
        }  # fmt: skip
        card = {
            "id": self._settings.model, "object": "model", "created": created, "owned_by": "vllm",
            "root": self._settings.model, "parent": None, "max_model_len": self._settings.max_model_len,
            "permission": [permission],
        }  # fmt: skip
        connection.respond(200, msgspec.json.encode({"object": "list", "data": [card]}))

    def _metrics(self, request: Request, connection: Connection, fault: Fault | None) -> None:
        metrics, scheduler = self._engine.metrics, self._engine.scheduler
        metrics.running, metrics.waiting = len(scheduler.running), len(scheduler.queued)
        metrics.cache_usage = self._engine.cache.usage
        connection.respond(200, metrics.text(), b"text/plain; version=1.0.0; charset=utf-8")

    def _tokenize(self, request: Request, connection: Connection, fault: Fault | None) -> None:
        body = parse_body(request.body, request.headers.get("content-type", ""))
        check_model(body, self._settings)
        if isinstance(body.get("messages"), list):
            ids = tokens.encode_chat(
                body["messages"],
                open_turn=body.get("add_generation_prompt", True) is not False,
                continue_last=bool(body.get("continue_final_message")),
            )[0]
        else:
            ids = tokens.encode(str(body.get("prompt", "")))
        answer = {"count": len(ids), "max_model_len": self._settings.max_model_len, "tokens": ids, "token_strs": None}
        connection.respond(200, msgspec.json.encode(answer))

    def _embeddings(self, request: Request, connection: Connection, fault: Fault | None) -> None:
        body = parse_body(request.body, request.headers.get("content-type", ""))
        check_model(body, self._settings)
        given = body.get("input", "")
        inputs = [given] if isinstance(given, str) else [str(each) for each in given]
        self._engine.metrics.prompt_tokens += sum(len(tokens.encode(text)) for text in inputs)
        made = frames.embeddings(self._settings.model, inputs, int(time.time()), request.request_id(body))
        connection.respond(200, made)

    def _abort(self, request: Request, connection: Connection, fault: Fault | None) -> None:
        if not self._settings.scale_out:
            raise WireError(_SCALE_OUT, status=403, type_="PermissionDeniedError")
        try:
            body: Any = msgspec.json.decode(request.body)
        except msgspec.DecodeError as error:
            raise WireError(f"JSON decode error: {error}", type_="Bad Request") from None
        ids = body.get("request_ids")
        if ids is None:
            raise WireError("Missing 'request_ids' in request body", type_="Bad Request")
        connection.respond(200, b"", b"")
        self._engine.abort([ids] if isinstance(ids, str) else ids)

    def _reset(self, request: Request, connection: Connection, fault: Fault | None) -> None:
        self._engine.clear_cache()
        connection.respond(200, b"", b"")

    def _add_faults(self, request: Request, connection: Connection, fault: Fault | None) -> None:
        try:
            added = self._engine.faults.add(request.body)
        except msgspec.MsgspecError as error:
            raise WireError(str(error)) from None
        self._list_faults(request, connection, fault)
        for each in added:
            if each.kind == "refuse":
                self._engine.refuse_for(each.seconds)

    def _list_faults(self, request: Request, connection: Connection, fault: Fault | None) -> None:
        connection.respond(200, msgspec.json.encode(self._engine.faults.faults))

    def _clear_faults(self, request: Request, connection: Connection, fault: Fault | None) -> None:
        self._engine.faults.clear()
        connection.respond(200, b"[]")

    def _list_requests(self, request: Request, connection: Connection, fault: Fault | None) -> None:
        connection.respond(200, msgspec.json.encode([each.shown() for each in self._engine.requests]))

    def _clear_requests(self, request: Request, connection: Connection, fault: Fault | None) -> None:
        self._engine.requests.clear()
        connection.respond(200, b"[]")
