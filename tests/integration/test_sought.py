"""What `forebay doctor` and `forebay config check` say of engines that are found."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from forebay.platform.cli.config import config as config_command
from forebay.platform.config.model import Config
from forebay.platform.local.checkup import Finding
from forebay.platform.local.sought import sought
from tests.doubles.kubernetes import KubernetesDouble, pod, slice_

IN_KUBERNETES = {"namespace": "models", "service": "engines", "port": "http"}
WHERE = "in Kubernetes by service engines in namespace models, port http"
NONE_OF = "which is none of unified, prefill, decode"


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubernetesDouble]:
    async with KubernetesDouble() as double:
        monkeypatch.setenv("KUBECONFIG", str(double.kubeconfig(tmp_path / "kubeconfig")))
        yield double


async def found(**discovery: Any) -> list[tuple[str, str]]:
    data = {"pools": [{"name": "p", "discovery": discovery}], "models": [{"name": "m", "pool": "p"}]}
    findings, _ = await sought(msgspec.convert(data, Config))
    assert all(bool(one.remedy) == (one.level != "ok") and one.what == "pool p" for one in findings), findings
    return [_said(one) for one in findings]


def _said(finding: Finding) -> tuple[str, str]:
    return finding.level, finding.detail


async def test_pods_are_counted_and_those_with_faults_named(api: KubernetesDouble) -> None:
    pods = {
        "a": pod("a"),
        "b": pod("b", "10.0.0.2", ready=False),
        "c": pod("c", "10.0.0.3", labels={"forebay.dev/role": "both"}),
        "d": pod("d", "10.0.0.4", labels={"forebay.dev/role": "decode"}),
    }
    await api.set("pods", *pods.values())
    await api.set("slices", slice_("engines-x", pods | {"gone": pod("gone")}, unready=("b",)))
    assert await found(kubernetes=IN_KUBERNETES) == [
        ("ok", f"3 endpoints {WHERE}, 2 of them sent nothing new"),
        ("ok", "b: its pod is not ready"),
        ("ok", "d: role decode is not placed on yet"),
        ("warn", "pod gone is left out: it is in the service, and its pod is not known"),
        ("warn", f"pod c is left out: it has the label forebay.dev/role=both, {NONE_OF}"),
    ]
    first, *faults = await found(kubernetes=IN_KUBERNETES | {"kvEventsPort": "kv"})
    assert first == ("warn", f"0 endpoints {WHERE}")
    assert ("warn", "pod a is left out: it has no port named kv") in faults


async def test_a_service_that_matches_nothing_is_a_warning(api: KubernetesDouble) -> None:
    ((level, text),) = await found(kubernetes=IN_KUBERNETES)
    assert (level, text[:12]) == ("warn", "0 endpoints ")


async def test_what_this_account_may_not_do_is_said(api: KubernetesDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    api.refuse = 403
    ((level, text),) = await found(kubernetes=IN_KUBERNETES)
    assert (level, text[:74]) == ("fail", "the pods cannot be listed: it answered 403 (see RBAC in docs/discovery.md)")
    await api.leave()
    ((level, text),) = await found(kubernetes=IN_KUBERNETES)
    assert level == "fail"
    assert text.startswith("the pods cannot be listed: NewConnectionError: ")
    monkeypatch.setenv("KUBECONFIG", "/nowhere/at/all")
    ((level, text),) = await found(kubernetes=IN_KUBERNETES)
    assert (level, text[:46]) == ("fail", "it is not known where the Kubernetes API is: I")


async def test_one_that_may_list_and_not_watch_is_told(api: KubernetesDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = api._answer

    async def only_lists(head: bytes, writer: asyncio.StreamWriter) -> None:
        api.refuse = 403 if b"watch=true" in head.lower() else 0
        await answer(head, writer)

    monkeypatch.setattr(api, "_answer", only_lists)
    ((level, text),) = await found(kubernetes=IN_KUBERNETES)
    assert (level, text[:50]) == ("fail", "the pods cannot be watched: it answered 403 (see R")


async def test_engines_of_this_machine_are_counted_and_faults_named(tmp_path: Path) -> None:
    where = str(tmp_path / "engines")
    assert await found(local={"directory": where}) == [("warn", f"there is no {where} yet")]
    (tmp_path / "engines").mkdir()
    assert await found(local={"directory": where}) == [("warn", f"0 endpoints by files in {where}")]
    (tmp_path / "engines" / "a.json").write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": os.getpid()}))
    (tmp_path / "engines" / "b.json").write_text("{")
    assert await found(local={"directory": where}) == [
        ("ok", f"1 endpoint by files in {where}"),
        ("warn", "'b.json' is left out: it cannot be read: Input data was truncated"),
    ]
    (tmp_path / "engines").chmod(0o777)
    ((level, text),) = await found(local={"directory": where})
    assert (level, text) == (
        "fail", f"its directory cannot be used: {where} can be written by everybody: chmod o-w {where}"
    )  # fmt: skip


def test_config_check_says_where_engines_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.yaml").write_text("""\
apiVersion: forebay.dev/v1
pools:
  - {name: a, discovery: {local: {}}}
  - {name: b/c, discovery: {local: {}}}
  - {name: k, discovery: {kubernetes: {service: engines, namespace: models}}}
  - {name: own, discovery: {kubernetes: {selector: app=engine}}}
models: [{name: a, pool: a}, {name: b, pool: b/c}, {name: k, pool: k}, {name: o, pool: own}]
""")
    result = CliRunner().invoke(config_command, ["check", "f.yaml"])
    assert (result.exit_code, result.output.splitlines()[1:]) == (0, [
        f"pool a finds engines by files in {tmp_path}/.forebay/run/engines/a",
        f"pool b/c finds engines by files in {tmp_path}/.forebay/run/engines/b%2Fc",
        "pool k finds engines in Kubernetes by service engines in namespace models, port 8000",
        "pool own finds engines in Kubernetes by app=engine in namespace default (Forebay's own), port 8000",
    ])  # fmt: skip
