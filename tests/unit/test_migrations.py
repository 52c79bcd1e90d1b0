"""Migrations only add: a program one version older keeps reading and writing while its successor is rolled out."""

import importlib.util
import io
import re
from pathlib import Path
from typing import Any

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations

from forebay.platform.stores import schema

VERSIONS = sorted((Path(schema.__file__).parent / "migrations" / "versions").glob("r*.py"))
_BODY = re.compile(r"\$(\w*)\$.*?\$\1\$", re.S)  # of functions: run later, by whoever
_COMMENT = re.compile(r"--[^\n]*")
_TABLE = r'(?:IF\s+NOT\s+EXISTS\s+|ONLY\s+|IF\s+EXISTS\s+)*"?(\w+)"?'
_BREAKS = (
    (r"\bDROP\s+(TABLE|COLUMN|TYPE|SCHEMA|VIEW|FUNCTION|TRIGGER|SEQUENCE|DEFAULT)\b", "takes away"),
    (r"\bRENAME\b", "renames"),
    (r"\bALTER\s+COLUMN\s+\S+\s+(SET\s+DATA\s+)?TYPE\b", "changes a type"),
    (r"\bSET\s+NOT\s+NULL\b", "demands what the older program does not write"),
    (r"\bADD\s+COLUMN\b(?![^,]*\bDEFAULT\b)[^,]*\bNOT\s+NULL\b", "demands what the older program does not write"),
    (r"\bALTER\s+TABLE\b.*\bADD\s+(CONSTRAINT|CHECK|UNIQUE|PRIMARY|FOREIGN)\b", "refuses what was allowed"),
    (r"^\s*(TRUNCATE|DELETE\s+FROM)\b", "takes away"),
)


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def statements(module: Any) -> list[str]:
    """The SQL of an upgrade, without running it."""
    out = io.StringIO()
    context = MigrationContext.configure(dialect_name="postgresql", opts={"as_sql": True, "output_buffer": out})
    with Operations.context(context):
        module.upgrade()
    return [one for one in _BODY.sub("''", _COMMENT.sub("", out.getvalue())).split(";") if one.strip()]


def faults(sql: list[str]) -> list[str]:
    """What in a migration an older program would not survive. Tables that it creates itself are its own, and so is one
    that it moves out of the way of such a one: what the new one must take, an integration test says."""
    created = {table for one in sql for table in re.findall(rf"(?i)\bCREATE\s+TABLE\s+{_TABLE}", one)}
    moved = re.findall(rf"(?i)\bALTER\s+TABLE\s+{_TABLE}\s+RENAME\s+TO\s+(\w+)", " ".join(sql))
    created |= {after for before, after in moved if before in created}
    found = []
    for one in sql:
        at = re.search(rf"(?is)\b(?:ALTER\s+TABLE|DROP\s+TABLE|CREATE\s+UNIQUE\s+INDEX.*?\bON)\s+{_TABLE}", one)
        if at is not None and at[1] in created:
            continue
        found += [f"{why}: {one.strip()}" for pattern, why in _BREAKS if re.search(f"(?is){pattern}", one)]
        if re.search(r"(?i)\bCREATE\s+UNIQUE\s+INDEX\b", one):
            found.append(f"refuses what was allowed: {one.strip()}")
    return found


def test_there_is_one_history_in_the_order_of_the_files() -> None:
    modules = [load(path) for path in VERSIONS]
    assert [module.revision for module in modules] == [path.stem[1:5] for path in VERSIONS]
    assert [module.down_revision for module in modules] == [None, *(module.revision for module in modules[:-1])]


@pytest.mark.parametrize("path", VERSIONS[1:], ids=lambda path: path.stem)
def test_a_migration_only_adds(path: Path) -> None:
    sql = statements(load(path))
    assert sql
    assert faults(sql) == []


@pytest.mark.parametrize(("sql", "sound"), [
    ("ALTER TABLE tenants ADD COLUMN note text", True),
    ("ALTER TABLE tenants ADD COLUMN level integer NOT NULL DEFAULT 0", True),
    ("CREATE INDEX x ON tenants (note)", True),
    ("ALTER TABLE tenants ALTER COLUMN name DROP NOT NULL", True),
    ("ALTER TABLE tenants ADD COLUMN level integer NOT NULL", False),
    ("ALTER TABLE tenants DROP COLUMN name", False),
    ("ALTER TABLE tenants RENAME COLUMN name TO title", False),
    ("ALTER TABLE tenants ALTER COLUMN name SET NOT NULL", False),
    ("ALTER TABLE tenants ALTER COLUMN name TYPE integer", False),
    ("ALTER TABLE tenants ADD CONSTRAINT short CHECK (length(name) < 9)", False),
    ("CREATE UNIQUE INDEX x ON tenants (note)", False),
    ("DROP TABLE tenants", False),
    ("DELETE FROM tenants", False),
])  # fmt: skip
def test_the_check_knows_what_breaks_an_older_program(sql: str, sound: bool) -> None:
    assert (faults([sql]) == []) is sound
