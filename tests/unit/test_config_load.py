"""Files to Config: what is read, what is filled in, and that what is shown can be read again."""

import logging
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from forebay.platform.announced import directory_of
from forebay.platform.config import scalars
from forebay.platform.config.engines import Endpoint, Pool
from forebay.platform.config.load import ConfigError, check, examine, load_config
from forebay.platform.config.model import Config, Model, PriceVersion, Stores
from forebay.platform.config.redact import redact
from forebay.platform.config.show import as_yaml
from forebay.platform.local.paths import Paths
from forebay.platform.local.settings import in_state_directory, with_local_engines
from forebay.platform.local.vllm import replica

HEAD = "apiVersion: forebay.dev/v1\n"


def loaded(text: str, **environ: str) -> Config:
    config, faults = examine(HEAD + text, "f", environ)
    assert config is not None, faults
    return config


def test_no_file_means_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config(None) == Config()
    Path("forebay.yaml").write_text(HEAD + "currency: EUR\n")
    assert load_config(None).currency == "EUR"


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file or directory; name a file"):
        load_config(tmp_path / "none.yaml")


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(tmp_path)


def test_bytes_that_are_not_utf8_are_placed(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(b"a: 1\nb: caf\xe9\n")
    with pytest.raises(ConfigError, match=r"f\.yaml:2: is not UTF-8 text; save it as UTF-8"):
        load_config(file)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(b"#" * (1 << 21))
    with pytest.raises(ConfigError, match="is larger than 1048576 bytes"):
        load_config(file)


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + HEAD.encode() + b"currency: EUR\r\n")
    assert load_config(file).currency == "EUR"


def test_the_error_lists_every_fault(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("server: {port: x}\ntimeouts: {idle: -1}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert [fault.path for fault in caught.value.faults if not fault.warning] == ["server.port", "timeouts.idle"]
    assert str(caught.value).count("\n") == len(caught.value.faults) - 1


def test_warnings_are_logged_and_do_not_stop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("currency: EUR\n")
    with caplog.at_level(logging.WARNING):
        assert load_config(file).currency == "EUR"
    assert "apiVersion is missing" in caplog.text


def test_values_mean_what_yaml_1_2_says() -> None:
    config = loaded("pools: [{name: no, endpoints: [{url: 'http://h'}]}]\nmodels: [{name: on, pool: no, aliases: [y]}]")
    assert (config.pools[0].name, config.models[0].name, config.models[0].aliases) == ("no", "on", ("y",))


def test_anchors_and_merges() -> None:
    config = loaded("""\
pools:
  - name: a
    endpoints:
      - &base {url: "http://h:1", engine: vllm, priorityScheduling: true}
      - {<<: *base, url: "http://h:2", priorityScheduling: false}
models:
  - {name: m, pool: a}
""")
    first, second = config.pools[0].endpoints
    assert (first.url, first.engine, first.priority_scheduling) == ("http://h:1", "vllm", True)
    assert (second.url, second.engine, second.priority_scheduling) == ("http://h:2", "vllm", False)


def test_prices_are_exact_and_instants_are_utc() -> None:
    config = loaded("""\
pools: [{name: p, endpoints: [{url: "http://h"}]}]
models:
  - name: m
    pool: p
    prices: [{version: "1", effectiveFrom: 2026-01-01T02:00:00+02:00, input: "0.10", output: 3}]
""")
    (price,) = config.models[0].prices
    assert (str(price.input), price.output) == ("0.10", Decimal(3))
    assert price.effective_from == datetime(2026, 1, 1, tzinfo=UTC)


def test_base_urls_are_normalised() -> None:
    config = loaded("pools: [{name: p, endpoints: [{url: 'HTTP://Host:1/A/'}]}]\nmodels: [{name: m, pool: p}]"
                    .replace("HTTP", "http"))
    assert config.pools[0].endpoints[0].url == "http://host:1/A"


def test_store_urls_take_variables_and_encode_the_user_part() -> None:
    text = "stores: {postgres: 'postgresql://u:${PW}@${HOST}:5432/d', valkey: '${VALKEY}'}"
    config = loaded(text, PW="p@ss/w:rd#%", HOST="db.internal", VALKEY="valkey://:x@h/0")
    assert config.stores.postgres == "postgresql://u:p%40ss%2Fw%3Ard%23%25@db.internal:5432/d"
    assert config.stores.valkey == "valkey://:x@h/0"


def test_no_repr_or_listing_shows_a_password() -> None:
    config = loaded("stores: {postgres: 'postgresql://u:hunter2@h/d?sslpassword=hunter2', valkey: 'redis://:hunter2@h'}")
    assert "hunter2" in config.stores.postgres
    assert "hunter2" not in repr(config) + str(config.stores.__rich_repr__()) + as_yaml(config)
    assert repr(config.stores).startswith("Stores(postgres='postgresql://***@h/d?sslpassword=***', valkey='redis://***@h'")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("embedded", "embedded"),
        ("postgresql://h/d", "postgresql://h/d"),
        ("postgresql://u:p@h/d", "postgresql://***@h/d"),
        ("postgresql://u:p@ss/w@h/d", "postgresql://***@h/d"),
        ("u:p@h", "***@h"),
        ("postgresql:/u:p@h", "postgresql:/***@h"),
        ("host=h password='a b' x=y", "host=h password=*** x=y"),
        ("http://h/?api_key=k&a=b", "http://h/?api_key=***&a=b"),
    ],
)
def test_redaction(text: str, shown: str) -> None:
    assert redact(text) == shown


@given(st.text(min_size=1), st.sampled_from(["postgresql://u:{}@h/d", "valkey://:{}@h", "http://{}@h", "{}@h"]))
def test_redaction_masks_any_password(password: str, template: str) -> None:
    scheme, slashes, _ = template.rpartition("://")
    assert redact(template.format(password)) == f"{scheme}{slashes}***@{template.rpartition('@')[2]}"


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/:-]{0,20}", fullmatch=True)
amounts = st.decimals(0, 999, places=6)
instants = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
versions = st.builds(
    PriceVersion, version=names, effective_from=instants, input=amounts, output=amounts, cache_read=amounts
)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Configurations that hold to every rule."""
    pools = draw(st.lists(names, unique=True, min_size=1, max_size=3))
    models = draw(st.lists(names, unique=True, min_size=1, max_size=4))
    price = draw(st.lists(versions, max_size=3, unique_by=(lambda p: p.version, lambda p: p.effective_from)))
    engine: Any = draw(st.sampled_from(["vllm", "openai"]))
    endpoints = [Endpoint(url=f"http://h:{i}", engine=engine) for i in range(len(pools))]
    return Config(
        pools=tuple(Pool(name=name, endpoints=(endpoint,)) for name, endpoint in zip(pools, endpoints, strict=True)),
        models=tuple(Model(name=n, pool=draw(st.sampled_from(pools)), prices=tuple(price)) for n in models),
        stores=Stores(checkpoint_every=draw(st.floats(0.001, 86_400))),
        currency=draw(st.from_regex("[A-Z]{3}", fullmatch=True)),
    )


def test_engines_that_are_found_are_reached_at_a_number_or_a_name() -> None:
    text = (
        "pools: [{name: p, discovery: {kubernetes: {service: e, port: 8000, kvEventsPort: events, kvReplayPort: '5657'}"
        "}}]\nmodels: [{name: m, pool: p}]"
    )
    config, faults = examine(f"apiVersion: forebay.dev/v1\n{text}", "f", {})
    assert not faults
    assert config is not None
    assert config.pools[0].discovery is not None
    found = config.pools[0].discovery.kubernetes
    assert found is not None
    assert (found.port, found.kv_events_port, found.kv_replay_port) == ("8000", "events", "5657")
    assert (found.namespace, found.pod_labels.role, config.pools[0].endpoints) == (None, "forebay.dev/role", ())
    assert config.served_model(config.pools[0], found) == "m"


@given(configs())
def test_what_is_shown_reads_back_as_the_same(config: Config) -> None:
    again, faults = examine(as_yaml(config), "f", {})
    assert again == config
    assert all(fault.warning for fault in faults)


@given(st.text())
def test_any_text_gives_faults_rather_than_a_crash(text: str) -> None:
    check(text, "f", {})


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates() | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["pools", "models", "name", "url", "endpoints", "stores", "x"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from([f.encode_name for f in msgspec.structs.fields(Config)]), json_like))
def test_any_document_gives_faults_rather_than_a_crash(document: dict[str, Any]) -> None:
    config, faults = examine(yaml.safe_dump(document), "f", {})
    assert config is not None or any(not fault.warning for fault in faults)


def test_every_type_in_the_configuration_can_be_read() -> None:
    known = {*scalars.SCALARS, inspect.NoneType}

    def walk(kind: inspect.Type) -> None:
        match kind:
            case inspect.Metadata():
                walk(kind.type)
            case inspect.UnionType():
                assert len(kind.types) == 2
                for option in kind.types:
                    walk(option)
            case inspect.VarTupleType():
                walk(kind.item_type)
            case inspect.StructType():
                for field in kind.fields:
                    walk(field.type)
            case _:
                assert type(kind) in known

    walk(inspect.type_info(Config))


def test_effective_dates_that_are_the_same_instant_collide() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    price = {"input": "1", "output": "1"}
    zones = [start.isoformat(), (start + timedelta(hours=2)).isoformat().replace("+00:00", "+02:00")]
    document = {
        "apiVersion": "forebay.dev/v1",
        "pools": [{"name": "p", "endpoints": [{"url": "http://h"}]}],
        "models": [{"name": "m", "pool": "p", "prices": [
            price | {"version": f"v{i}", "effectiveFrom": zone} for i, zone in enumerate(zones)]}],
    }  # fmt: skip
    (fault,) = check(yaml.safe_dump(document), "f", {})
    assert fault.path == "models[0].prices[1].effectiveFrom"
    assert fault.problem.startswith("effective date '2026-01-01 00:00:00+00:00' is taken")


def test_the_environment_moves_the_state_directory_for_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "forebay.yaml"
    file.write_text("apiVersion: forebay.dev/v1\nstores: {stateDir: elsewhere}\n")
    monkeypatch.setenv("FOREBAY_STATE_DIR", "/moved")
    assert load_config(file).stores.state_dir == "/moved"
    monkeypatch.chdir(tmp_path.parent)
    assert load_config(None).stores.state_dir == "/moved"
    monkeypatch.setenv("FOREBAY_STATE_DIR", "")
    assert load_config(file).stores.state_dir == "elsewhere"


def test_what_up_writes_for_its_front_door_reads_back_and_lets_others_join(tmp_path: Path) -> None:
    where = Paths(tmp_path)
    config = in_state_directory(Config(), where)
    written = with_local_engines(config, [replica(where, index, 9101 + index) for index in range(2)], where)
    found, faults = examine(as_yaml(written, passwords=True), "forebay.yaml")
    assert (found, faults) == (written, [])
    (pool,) = written.pools
    assert pool.discovery is not None
    assert pool.discovery.local is not None
    assert directory_of(written, pool, pool.discovery.local) == tmp_path / "run" / "engines" / "local"
