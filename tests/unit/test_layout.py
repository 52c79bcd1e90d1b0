"""Four source roots share one namespace, and none of them hides the standard library."""

import platform
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("platform", "router", "metering", "autoscale")


@pytest.mark.parametrize("folder", [*ROOMS, *(f"{room}/forebay" for room in ROOMS), "tests/platform"])
def test_namespace_folders_are_no_packages(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_platform_is_the_standard_librarys() -> None:
    assert platform.python_version()
    assert not Path(platform.__file__).is_relative_to(ROOT / "platform")
