"""What the documentation promises: every error code is explained, and what it says to run can be run as written."""

import ast
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("platform", "router", "metering", "autoscale")
CODE_AT = {"ApiError": 1, "Refusal": 1, "unavailable": 0, "conflict": 0, "invalid": None}  # else it is `code=`
COMPOSED = {
    "f'invalid_{what}'": ("invalid_model", "invalid_tier"),
    "f\"{what.replace(' ', '_')}_not_found\"": tuple(
        f"{what}_not_found" for what in ("tenant", "project", "key", "entry")
    ),
}
INTERNAL = {"snapshot_unavailable"}  # said to other front doors alone
OF_THE_ADMIN_API = {
    f"{room}/{name}.py"
    for room, names in {
        "api": ("admin", "admin_body", "limits", "pricing", "statements", "wording"), "limits": ("records",),
        "platform": ("offered",),
        "tenancy": ("service", "validate"), "stores": ("database",),
    }.items()
    for name in names
}  # fmt: skip
BENCHES = [path for path in sorted((ROOT / "tests" / "bench").glob("*.py")) if '"__main__"' in path.read_text()]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


def codes() -> Iterator[tuple[str, str]]:
    """Each code that an error is made with, and where."""
    for room in ROOMS:
        for path in sorted((ROOT / room / "forebay").rglob("*.py")):
            tree = ast.parse(path.read_text())
            assigned = {
                target.id: node.value
                for node in ast.walk(tree) if isinstance(node, ast.Assign)
                for target in node.targets if isinstance(target, ast.Name)
            }  # fmt: skip
            for call in ast.walk(tree):
                name = ast.unparse(call.func).rpartition(".")[2] if isinstance(call, ast.Call) else ""
                if isinstance(call, ast.Call) and name in CODE_AT:
                    for found in _strings(_code(call, CODE_AT[name]), assigned):
                        yield found, f"{path.parent.name}/{path.name}:{call.lineno}"


def _code(call: ast.Call, at: int | None) -> ast.expr | None:
    named = [word.value for word in call.keywords if word.arg == "code"]
    return next(iter(named or (call.args[at : at + 1] if at is not None else [])), None)


def _strings(value: ast.expr | None, assigned: dict[str, ast.expr]) -> Iterator[str]:
    match value:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp():
            yield from _strings(value.body, assigned)
            yield from _strings(value.orelse, assigned)
        case ast.Name(id=name):  # of a parameter, the caller gives it
            yield from _strings(assigned.get(name), assigned)
        case ast.JoinedStr():
            yield from COMPOSED[ast.unparse(value)]


def documented(*names: str) -> set[str]:
    return set(re.findall(r"`([a-z_]+)`", "".join((ROOT / "docs" / name).read_text() for name in names)))


def test_every_error_code_is_in_the_documentation() -> None:
    found = dict(codes())
    assert {"invalid_model", "rate_limit_exceeded", "request_too_large", "invalid_api_key", "name_taken"} <= set(found)
    told = documented("api.md", "tenants-and-keys.md") | INTERNAL
    assert {code: where for code, where in found.items() if code not in told} == {}


def test_every_error_code_of_the_admin_api_is_on_its_page() -> None:
    told = documented("tenants-and-keys.md")
    found = [(code, where) for code, where in codes() if where.partition(":")[0] in OF_THE_ADMIN_API]
    assert len(found) > len(OF_THE_ADMIN_API)
    assert [(code, where) for code, where in found if code not in told] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_for_a_clone_name_its_own_python(page: Path) -> None:
    """A bare `python` has none of what they need."""
    bare = re.findall(r"^.*(?<!\.venv/bin/)\bpython3? -m (?:tests|forebay|pytest)\b.*$", page.read_text(), re.MULTILINE)
    assert bare == []


@pytest.mark.parametrize("bench", BENCHES, ids=lambda path: path.stem)
def test_every_benchmark_says_what_it_measures(
    bench: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"tests.bench.{bench.stem}"
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(SystemExit) as left:
        runpy.run_module(name, run_name="__main__")
    assert left.value.code == 0
    first = (ast.get_docstring(ast.parse(bench.read_text())) or "").split(".")[0]
    assert " ".join(first.split()) in " ".join(capsys.readouterr().out.split())
