"""Real engines, started once a session and only if a test asks for them."""

from collections.abc import Iterator

import pytest

from forebay.platform.local.paths import Paths
from tests.e2e.engines import Engine, borrowed, running_engine, state_with_engines


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real engines last, and `forebay up` before the session's engines: its two and those two would want 12 GB."""

    def place(item: pytest.Item) -> int:
        return 0 if item.path.parent.name != "e2e" else 1 if item.path.name == "test_up.py" else 2

    items.sort(key=place)


@pytest.fixture(scope="session")
def engine_state() -> Iterator[Paths]:
    """A state directory with the engine environment and the model in it."""
    with state_with_engines() as where:
        yield where


@pytest.fixture(scope="session")
def vllm_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """One vLLM on CPU with SmolLM2-135M-Instruct; FOREBAY_VLLM_URL names one that runs already."""
    engine = borrowed()
    if engine is not None:
        yield engine
        return
    with running_engine(request.getfixturevalue("engine_state"), 0) as engine:
        yield engine


@pytest.fixture(scope="session")
def vllm_pair(vllm_engine: Engine, engine_state: Paths) -> Iterator[tuple[Engine, Engine]]:
    """Two replicas of the same model, the first of them `vllm_engine`."""
    with running_engine(engine_state, 1) as second:
        yield vllm_engine, second
