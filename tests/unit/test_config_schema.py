"""The published schema and the reference agree with the structs, and accept what the program accepts."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from forebay.platform.config import reference, schema
from forebay.platform.config.load import check, examine

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = sorted((DOCS / "examples").glob("*.yaml"))
ENVIRON = {"PGPASSWORD": "a", "VALKEY_PASSWORD": "b", "UPSTREAM_API_KEY": "c"}
RENEW = "run: python -m forebay.platform.config.reference docs"
PRICED = "{version: v, effectiveFrom: 2026-01-01T00:00:00Z, output: 1,"
VALIDATOR = Draft202012Validator(schema.json_schema())


class AsWritten(yaml.SafeLoader):
    """YAML as editors read it for JSON Schema: instants stay text."""


AsWritten.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith("timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def plain(text: str) -> Any:
    return yaml.load(text, AsWritten)


def test_the_schema_is_a_sound_draft_2020_12_schema_with_an_address() -> None:
    document = schema.json_schema()
    Draft202012Validator.check_schema(document)
    assert document["$id"] == "https://forebay.dev/schema/v1.json"
    assert document["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_every_object_is_closed_and_every_key_is_described() -> None:
    document = schema.json_schema()
    for part in [document, *document["$defs"].values()]:
        assert part["additionalProperties"] is False
        assert part["title"]
        assert part["description"]
        for key, value in part["properties"].items():
            assert "_" not in key
            assert value["description"].endswith(".")


def test_the_committed_schema_is_current() -> None:
    assert (DOCS / "forebay.schema.json").read_text("utf-8") == schema.text(), RENEW


def test_the_reference_is_current() -> None:
    page = (DOCS / "configuration.md").read_text("utf-8")
    assert reference.page(page) == page, RENEW


def test_the_reference_names_every_key() -> None:
    document = schema.json_schema()
    for part in [document, *document["$defs"].values()]:
        assert all(f"| `{key}` |" in reference.tables() for key in part["properties"])


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_examples_are_right(file: Path) -> None:
    text = file.read_text("utf-8")
    assert check(text, file.name, ENVIRON) == []
    assert list(VALIDATOR.iter_errors(plain(text))) == []


def test_the_example_on_the_page_is_the_example_in_the_file() -> None:
    page = (DOCS / "configuration.md").read_text("utf-8")
    shown = page.partition("```yaml\n")[2].partition("```")[0]
    assert plain(shown) == plain((DOCS / "examples/vllm.yaml").read_text("utf-8"))


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: forebay.dev/v2",
        "servr: {}",
        "server: {port: 70000}",
        "server: {port: '80'}",
        "server:",
        "timeouts: {idle: 0}",
        "currency: euro",
        "pools: [{name: p}]",
        "pools: [{name: p, endpoints: []}]",
        "pools: [{name: p, endpoints: [{url: 'ftp://h'}]}]",
        "pools: [{name: p, endpoints: [{url: 'http://h', engine: tgi}]}]",
        "models: [{name: m, pool: p, aliases: [1.1]}]",
        "models: [{name: m, pool: p, apis: []}]",
        f"models: [{{name: m, pool: p, prices: [{PRICED} input: 0.5}}]}}]",
        f"models: [{{name: m, pool: p, prices: [{PRICED} input: '-1'}}]}}]",
    ],
)
def test_schema_and_check_refuse_alike(text: str) -> None:
    assert not VALIDATOR.is_valid(plain(text))
    assert any(not fault.warning for fault in check(text, "f", ENVIRON))


EXAMPLE = plain((DOCS / "examples/two-models.yaml").read_text("utf-8"))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


@given(
    st.sampled_from(places(EXAMPLE)[1:]),
    st.none() | st.booleans() | st.integers() | st.floats(-2, 2) | st.text(max_size=8)
    | st.sampled_from([[], {}, ["a"], "embedded", "0.5", "1e3", "http://h", "vllm", "2026-01-01", 8080, "yes", 10**20]),
)  # fmt: skip
def test_the_schema_accepts_whatever_the_program_accepts(path: tuple[Any, ...], value: Any) -> None:
    document = copy.deepcopy(EXAMPLE)
    at = document
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    config, _ = examine(yaml.safe_dump(document), "f", ENVIRON)
    if config is not None:
        assert list(VALIDATOR.iter_errors(document)) == []
