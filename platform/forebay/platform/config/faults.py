"""What is wrong with a configuration, said so that its reader can mend it."""

from collections.abc import Iterable

from msgspec import Struct

Path = tuple[str | int, ...]


class Fault(Struct, frozen=True, order=True):
    """One thing to mend. `line` counts from 1, 0 where no line is to blame; `path` is empty for the whole document.

    A `warning` does not stop Forebay from starting. No field ever holds a password or a key.
    """

    source: str
    line: int
    path: str
    problem: str
    fix: str
    warning: bool = False

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}" if self.line else self.source
        subject = f"{self.path}: " if self.path else ""
        return f"{place}: {'warning: ' if self.warning else ''}{subject}{self.problem}; {self.fix}"


class ConfigError(Exception):
    """A configuration that cannot be used. Its text is every fault, one a line."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = sorted(faults)
        super().__init__("\n".join(map(str, self.faults)))


class DocumentError(Exception):
    """Text that cannot be read as one document at all."""

    def __init__(self, line: int, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.line, self.problem, self.fix = line, problem, fix


class Report:
    """Collects faults of one source. `lines` says where each path that the document gives begins."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.faults: list[Fault] = []
        self.lines: dict[Path, int] = {}

    def fault(self, path: Path, problem: str, fix: str, *, line: int | None = None, warning: bool = False) -> None:
        at = self.line(path) if line is None else line
        self.faults.append(Fault(self.source, at, show(path), problem, fix, warning))

    def line(self, path: Path) -> int:
        """The line of `path`, or of the nearest thing around it that the document gives."""
        return next((self.lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in self.lines), 0)

    def given(self, *paths: Path) -> Path:
        """The first of `paths` that the document gives rather than leaves to its default, else the first."""
        return next((path for path in paths if path in self.lines), paths[0])


def show(path: Path) -> str:
    """`("pools", 0, "name")` as `pools[0].name`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")
