"""Run with an engine environment's own Python: which pinned packages are not wholly there?

Prints a JSON list of requirement strings. A package counts as there when its version is the pinned one and every
file that its RECORD names exists with the recorded size. What an interrupted pip left is cleared, so that pip does
not take it for installed.
"""

import json
import shutil
import sys
from importlib import metadata
from pathlib import Path


def wanted(lines: list[str]) -> dict[str, str]:
    """name -> version for this machine. Markers are evaluated with pip's own copy of `packaging`."""
    from pip._vendor.packaging.requirements import Requirement  # noqa: PLC0415

    pins = {}
    for line in lines:
        text = line.split("#")[0].strip()
        if text:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate():
                pins[requirement.name] = str(requirement.specifier).removeprefix("==")
    return pins


def whole(distribution: metadata.Distribution) -> bool:
    for file in distribution.files or ():
        if file.size is None or file.suffix == ".pyc":  # RECORD itself, and what Python compiles anew
            continue
        path = Path(str(file.locate()))
        if not path.exists() or path.stat().st_size != file.size:
            return False
    return distribution.read_text("RECORD") is not None


def missing(pins: dict[str, str]) -> list[str]:
    lacking = []
    for name, version in pins.items():
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            lacking.append(f"{name}=={version}")
            continue
        if distribution.version != version or not whole(distribution):
            lacking.append(f"{name}=={version}")
            if distribution.read_text("RECORD") is None:
                shutil.rmtree(str(getattr(distribution, "_path")), ignore_errors=True)  # noqa: B009
    return lacking


if __name__ == "__main__":
    print(json.dumps(missing(wanted(Path(sys.argv[1]).read_text().splitlines()))))
