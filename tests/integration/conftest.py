"""A front door per test, over the session's stores."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.engine.server import EngineDouble
from tests.integration.door import Door, config, opened
from tests.integration.templates import CHATML, known_template

OpenDoor = Callable[..., AbstractAsyncContextManager[Door]]


@pytest.fixture
def open_door(database: str, valkey: str, tmp_path: Path) -> OpenDoor:
    """`async with open_door(engine, …) as door`: keywords are sections of the configuration."""

    @asynccontextmanager
    async def open_(*engines: EngineDouble, **changes: Any) -> AsyncIterator[Door]:
        async with opened(config(tmp_path, list(engines), **changes), database, valkey) as door:
            yield door

    return open_


@pytest.fixture
def model(tmp_path: Path) -> dict[str, str]:
    """Of a model whose chat template and tokenizer the front door knows."""
    return known_template(tmp_path, CHATML)
