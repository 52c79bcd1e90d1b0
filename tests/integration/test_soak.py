"""The soak of `tests.bench.soak` at a size for every day: streams through a real process, and all is given back."""

from tests.bench.soak import GROWTH_MB, soak


async def test_hundreds_of_slow_streams_leave_nothing_behind() -> None:
    """litellm#6404, #12685, #13805."""
    result = await soak(300, 30.0, workers=1, doubles=1)
    assert (result.errors, result.unrecorded, result.leases_left) == (0, 0, 0)
    assert result.requests > 450  # half of them end and ask again
    assert result.events > 300 * 15
    assert result.growth_mb <= GROWTH_MB
    assert result.files_end < result.files_max - 300  # no connection of a client stays


async def test_the_same_with_several_workers() -> None:
    result = await soak(100, 12.0, workers=2, doubles=1)
    assert (result.errors, result.unrecorded, result.leases_left) == (0, 0, 0)
