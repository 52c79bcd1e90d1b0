"""A Kubernetes API server as far as a reflector sees it: pods and EndpointSlices of a namespace, listed in pages and
watched from a version on, with what such servers do now and then."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

KINDS = {"pods": "/api/v1/namespaces/{}/pods", "slices": "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"}
Object = dict[str, Any]


def pod(name: str, ip: str = "10.0.0.1", *, ready: bool = True, uid: str = "", **more: Any) -> Object:
    """`labels`, `deleted`, `ports` (by name) and `phase` say the rest."""
    ports = [{"name": key, "containerPort": value, "protocol": "TCP"} for key, value in more.get("ports", {}).items()]
    metadata: Object = {"name": name, "uid": uid or f"uid of {name}", "labels": more.get("labels", {"app": "engine"})}
    if more.get("deleted"):
        metadata |= {"deletionTimestamp": "2026-11-30T12:00:00Z", "deletionGracePeriodSeconds": 30}
    conditions = [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": metadata,
        "spec": {"containers": [{"name": "sidecar"}, {"name": "engine", "ports": ports}]},
        "status": {"phase": more.get("phase", "Running"), "podIP": ip, "conditions": conditions},
    }


def slice_(name: str, pods: dict[str, Object], *, port: int = 8000, service: str = "engines", **more: Any) -> Object:
    """Of `pods`, ready unless `unready` names them; `terminating` names those that are said to go."""
    unready, terminating = more.get("unready", ()), more.get("terminating", ())
    endpoints = [
        {
            "addresses": [one["status"]["podIP"]],
            "conditions": {"ready": name_ not in unready, "serving": True, "terminating": name_ in terminating},
            "targetRef": {"kind": "Pod", "name": name_, "uid": one["metadata"]["uid"]},
        }
        for name_, one in pods.items()
    ]
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": more.get("family", "IPv4"),
        "endpoints": endpoints or None,
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
    }


class KubernetesDouble:
    """`set` and `remove` change objects; `refuse` is a status that every call is answered with, `expired` makes the
    next watches too old. `asked` has (kind, query) of each call."""

    def __init__(self, namespace: str = "models") -> None:
        self.namespace = namespace
        self.version = 100
        self.objects: dict[str, dict[str, Object]] = {"pods": {}, "slices": {}}
        self.events: list[tuple[int, str, Object]] = []
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.refuse = 0
        self.expired = 0
        self.oldest = 0  # what is older is forgotten
        self.page = 0  # objects; 0: as many as are asked for
        self.garbage = b""  # sent once in the next watches
        self._port = 0
        self._server: asyncio.Server | None = None
        self._changed = asyncio.Condition()
        self._open: set[asyncio.Task[None]] = set()
        self.bookmarks = 0

    @property
    def watching(self) -> int:
        """Connections."""
        return len(self._open)

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def leave(self) -> None:
        """Break every connection, and take no new one."""
        if self._server is not None:
            self._server.close()
        self._server = None
        await self.cut()

    async def cut(self) -> None:
        """Break every connection."""
        for task in tuple(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def kubeconfig(self, path: Path) -> Path:
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{self._port}"}}],
            "users": [{"name": "test", "user": {"token": "a token"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }))  # fmt: skip
        return path

    async def set(self, kind: str, *objects: Object) -> None:
        for one in objects:
            name = one["metadata"]["name"]
            await self._tell("MODIFIED" if name in self.objects[kind] else "ADDED", kind, one)
            self.objects[kind][name] = one

    async def remove(self, kind: str, *names: str) -> None:
        for name in names:
            await self._tell("DELETED", kind, self.objects[kind].pop(name))

    async def forget(self, kind: str, *names: str) -> None:
        """Objects go while nobody hears of it: their events are too old by now."""
        for name in names:
            del self.objects[kind][name]
        self.version += 1
        self.oldest = self.version
        self.events.clear()

    async def bookmark(self) -> None:
        async with self._changed:
            self.version += 10
            self.bookmarks += 1
            self._changed.notify_all()

    async def _tell(self, event: str, kind: str, one: Object) -> None:
        async with self._changed:
            self.version += 1
            one["metadata"]["resourceVersion"] = str(self.version)
            self.events.append((self.version, kind, {"type": event, "object": one}))
            self._changed.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        with self._tracked(task), suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            try:
                while head := await reader.readuntil(b"\r\n\r\n"):
                    await self._answer(head, writer)
                    await writer.drain()
            finally:
                writer.close()

    @contextmanager
    def _tracked(self, task: asyncio.Task[None]) -> Iterator[None]:
        self._open.add(task)
        try:
            yield
        finally:
            self._open.discard(task)

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        target = urlsplit(head.split(b" ")[1].decode())
        query = {name: values[0] for name, values in parse_qs(target.query).items()}
        kind = next((kind for kind, path in KINDS.items() if path.format(self.namespace) == target.path), None)
        self.asked.append((kind or target.path, query))
        assert b"authorization: bearer a token" in head.lower()
        if self.refuse or kind is None:
            status = self.refuse or 404
            writer.write(_whole({"kind": "Status", "code": status, "message": "refused"}, status))
        elif query.get("watch", "").lower() == "true":
            await self._watch(kind, query, writer)
        else:
            writer.write(_whole(self._list(kind, query), 200))

    def _selected(self, kind: str, query: dict[str, str], one: Object) -> bool:
        name, _, value = query.get("labelSelector", "").partition("=")
        return not name or one["metadata"].get("labels", {}).get(name) == value

    def _list(self, kind: str, query: dict[str, str]) -> Object:
        found = [one for _, one in sorted(self.objects[kind].items()) if self._selected(kind, query, one)]
        start, size = int(query.get("continue", "0")), self.page or int(query.get("limit", "1000"))
        more = str(start + size) if start + size < len(found) else ""
        return {
            "kind": "List", "metadata": {"resourceVersion": str(self.version), "continue": more},
            "items": found[start : start + size] or None,
        }  # fmt: skip

    def _newer(self, version: int) -> bool:
        return self.version > version

    async def _watch(self, kind: str, query: dict[str, str], writer: asyncio.StreamWriter) -> None:
        since, bookmarks = int(query["resourceVersion"]), self.bookmarks
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        if self.expired or since < self.oldest:
            self.expired = max(0, self.expired - 1)
            _line(writer, {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}})
            writer.write(b"0\r\n\r\n")
            return
        if self.garbage:
            writer.write(b"%x\r\n%b\r\n" % (len(self.garbage), self.garbage))
        while True:
            for version, of, event in self.events:
                if version > since and of == kind and self._selected(kind, query, event["object"]):
                    _line(writer, event)
            since = self.version
            if self.bookmarks > bookmarks and query.get("allowWatchBookmarks", "").lower() == "true":
                bookmarks = self.bookmarks
                _line(writer, {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(since)}}})
            await writer.drain()
            async with self._changed:
                await self._changed.wait_for(partial(self._newer, since))


def _whole(body: Object, status: int) -> bytes:
    data = json.dumps(body).encode()
    head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(data)) + data


def _line(writer: asyncio.StreamWriter, event: Object) -> None:
    data = json.dumps(event).encode() + b"\n"
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
