"""What a front door or an engine says of itself, as a bench reads it."""

import asyncio
from collections.abc import Mapping
from urllib.parse import urlsplit


async def get(url: str, path: str, *, key: str | None = None) -> bytes:
    """The body of one GET on a connection of its own. Raises `OSError` for an answer other than 200."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    auth = f"authorization: Bearer {key}\r\n" if key else ""
    writer.write(f"GET {path} HTTP/1.1\r\nhost: bench\r\n{auth}connection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    if head[9:12] != b"200":
        raise OSError(f"{path} answered {head[:80]!r}")
    return body


def exposed(text: bytes) -> dict[str, float]:
    """Samples of an exposition by name and labels."""
    lines = (line.rpartition(" ") for line in text.decode().splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def total(samples: Mapping[str, float], name: str) -> float:
    """Of all series of one name."""
    return sum(value for series, value in samples.items() if series.partition("{")[0] == name)
