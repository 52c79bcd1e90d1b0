"""The Kubernetes API, by its official client, which is imported where it is used first: it takes a second to load."""

import os
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from forebay.router.discovery.reflector import AwayError, Source
from forebay.router.discovery.store import ExpiredError

PAGE = 500
WATCH_S = 60  # the server ends a watch after that long, and the next one goes on from there
TIMEOUTS_S = (5.0, WATCH_S + 15.0)  # to connect; between two pieces. Beyond it, nobody is there any more
LIST_TIMEOUTS_S = (5.0, 30.0)
LINE_LIMIT = 8 << 20  # bytes; an object has at most 1.5 MB
NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


class ClusterError(Exception):
    """There is no client, or nothing that says where the API server is."""


class Cluster:
    """One API server. Its calls block: they belong into threads. `client` is the client's module, `api` one of it."""

    def __init__(self, client: Any, api: Any) -> None:
        self._api = api
        self._core = client.CoreV1Api(api)
        self._discovery = client.DiscoveryV1Api(api)

    def __repr__(self) -> str:
        return f"<Cluster at {self._api.configuration.host}>"

    def pods(self, namespace: str, selector: str) -> Source:
        """`selector`: of labels; empty for every pod of the namespace."""
        return _Objects(self._core.list_namespaced_pod, namespace, selector)

    def slices(self, namespace: str, service: str) -> Source:
        """The EndpointSlices of a service."""
        selector = f"kubernetes.io/service-name={service}"
        return _Objects(self._discovery.list_namespaced_endpoint_slice, namespace, selector)

    def close(self) -> None:
        self._api.rest_client.pool_manager.clear()


def connect() -> Cluster:
    """To the cluster that `KUBECONFIG` names, else the one that this process runs in, else the one of ~/.kube/config.
    Blocks. Raises `ClusterError`."""
    try:
        client, config = import_module("kubernetes.client"), import_module("kubernetes.config")
    except ImportError as error:
        raise ClusterError("the kubernetes client is not installed: pip install 'forebay[kubernetes]'") from error
    settings = client.Configuration()
    try:
        if path := os.environ.get("KUBECONFIG"):
            config.load_kube_config(config_file=path, client_configuration=settings)
        else:
            _load_default(config, settings)
    except (config.ConfigException, OSError, ValueError) as error:
        raise ClusterError(f"it is not known where the Kubernetes API is: {error}") from error
    settings.retries = False  # a reflector waits and tries again by itself
    return Cluster(client, client.ApiClient(settings))


def own_namespace() -> str:
    """Of the pod that this process runs in; `default` elsewhere."""
    try:
        with open(NAMESPACE_FILE, encoding="utf-8") as file:  # noqa: PTH123 - one line
            return file.read().strip() or "default"
    except OSError:
        return "default"


def _load_default(config: Any, settings: Any) -> None:
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        config.load_kube_config(client_configuration=settings)


class _Objects:
    """A `Source`. `lists` is a method of the client."""

    def __init__(self, lists: Callable[..., Any], namespace: str, selector: str) -> None:
        self._lists = lists
        self._namespace = namespace
        self._selector = selector

    def page(self, token: str) -> bytes:
        response = self._ask(LIST_TIMEOUTS_S, limit=PAGE, **({"_continue": token} if token else {}))
        try:
            return bytes(response.data)
        except Exception as error:
            raise _away(error) from error
        finally:
            response.release_conn()

    def watch(self, version: str) -> "_Watching":
        return _Watching(
            self._ask(
                TIMEOUTS_S, watch=True, resource_version=version, allow_watch_bookmarks=True, timeout_seconds=WATCH_S
            )
        )

    def _ask(self, timeouts: tuple[float, float], **query: Any) -> Any:
        if self._selector:
            query["label_selector"] = self._selector
        try:
            response = self._lists(self._namespace, _preload_content=False, _request_timeout=timeouts, **query)
        except Exception as error:
            raise _away(error) from error
        if response.status != 200:
            body = bytes(response.data)[:300].decode("utf-8", "replace")
            response.release_conn()
            raise _refused(response.status, body)
        return response


class _Watching:
    def __init__(self, response: Any) -> None:
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        held = b""
        try:
            for data in self._response.stream(1 << 16):
                *lines, held = (held + data).split(b"\n")
                yield from lines
                if len(held) > LINE_LIMIT:
                    raise AwayError(f"an event of more than {LINE_LIMIT} bytes")
        except Exception as error:
            raise _away(error) from error

    def close(self) -> None:
        try:
            self._response.shutdown()
        except (ValueError, OSError, RuntimeError, AttributeError):
            return  # it has ended
        finally:
            self._response.close()


def _away(error: Exception) -> Exception:
    """What a fault of the client means: it has a dozen kinds of them, and urllib3 beneath it more."""
    if isinstance(error, AwayError):
        return error
    status = getattr(error, "status", None)
    if isinstance(status, int) and status:
        return _refused(status, str(getattr(error, "body", None) or getattr(error, "reason", "")))
    return AwayError(f"{type(error).__name__}: {error}")


def _refused(status: int, body: str) -> Exception:
    if status == 410:
        return ExpiredError(body[:300])
    hint = {401: " (its credentials are not accepted)", 403: " (see RBAC in docs/discovery.md)"}.get(status, "")
    return AwayError(f"it answered {status}{hint}: {body[:300]}")
