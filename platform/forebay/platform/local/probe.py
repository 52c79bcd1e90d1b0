"""Small HTTP questions to parts of this machine, and ports that are free on it."""

import asyncio
import http.client
import socket
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

import psutil

from forebay.platform.local.commands import LocalError


async def get(url: str, timeout: float = 2.0, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
    """(status, body), status 0 if nobody answers in time."""
    return await asyncio.to_thread(_get, url, timeout, headers or {})


def _get(url: str, timeout: float, headers: Mapping[str, str]) -> tuple[int, bytes]:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request("GET", target, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read(1 << 20)
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def any_port(host: str = "127.0.0.1") -> int:
    """A port that the kernel calls free."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def free_ports(first: int, count: int, avoid: Collection[int] = ()) -> list[int]:
    """The next `count` ports from `first` on that nobody listens on, without those to `avoid`."""
    found: list[int] = []
    port = first
    while len(found) < count and port < 65_536:
        if port not in avoid and is_free(port):
            found.append(port)
        port += 1
    if len(found) < count:
        raise LocalError(f"Fewer than {count} ports from {first} on are free. Set local.firstPort to another one.")
    return found


def holder(port: int) -> str:
    """Who listens on a port, in words, as far as this account may see."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                if connection.pid is None:
                    break
                process = psutil.Process(connection.pid)
                return f"{process.name()} (pid {process.pid}: {' '.join(process.cmdline())[:80]})"
    except psutil.Error:
        pass
    return "another process"
