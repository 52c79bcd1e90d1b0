"""What `forebay config check` says, as its reader sees it."""
# ruff: noqa: E501, ISC004 - a message stands as it is printed

import pytest

from forebay.platform.config.load import check

FOUND = "pools: [{name: p, discovery: {kubernetes: {%s}}}]\nmodels: [{name: m, pool: p}]"
ENDPOINT = "pools: [{name: p, endpoints: [{url: 'http://h:1', %s}]}]\nmodels: [{name: m, pool: p}]"
URL = "pools: [{name: p, endpoints: [{url: '%s'}]}]\nmodels: [{name: m, pool: p}]"
MODEL = "pools: [{name: p, endpoints: [{url: 'http://h:1'}]}]\nmodels: [{name: m, pool: p, %s}]"
PRICE = MODEL % "prices: [{version: v, effectiveFrom: 2026-01-01T00:00:00Z, output: 1, %s}]"


def said(text: str, environ: dict[str, str] | None = None) -> list[str]:
    faults = check(f"apiVersion: forebay.dev/v1\n{text}\n", "f", environ or {})
    return [str(fault) for fault in faults]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        # keys
        ("servr: {}", "f:2: servr: unknown key; did you mean server?"),
        ("server: {body_limit: 2048}", "f:2: server.body_limit: unknown key; did you mean bodyLimit?"),
        ("server:\n  connect: 3", "f:3: server.connect: unknown key; it belongs at timeouts.connect"),
        ("secrets: {zzz: 1}", "f:2: secrets.zzz: unknown key; the keys here are keyHash, cacheSalt"),
        ("server:\n  port: 1\n  port: 2", "f:4: server: port is given twice, first in line 3; keep one"),
        ("pools: [{name: p}]\nmodels: [{name: m, pool: p}]", "f:2: pools[0].endpoints: is missing; write a list"),
        ("{a: 1}: 2", "f:2: has a key that is a mapping; write keys as plain text"),
        # single values
        ("server: {port: 99999}", "f:2: server.port: 99999 is too high; write a whole number from 0 up to 65535"),
        ("server: {port: -1}", "f:2: server.port: -1 is too low; write a whole number from 0 up to 65535"),
        ("server: {port: 80.5}", "f:2: server.port: '80.5' is not a whole number; write a whole number from 0 up to 65535"),
        ("server: {port: true}", "f:2: server.port: 'true' is not a whole number; write a whole number from 0 up to"),
        ("server: {bodyLimit: 32MiB}", "f:2: server.bodyLimit: '32MiB' is not a whole number; write 33554432 (bytes)"),
        ("timeouts: {idle: 2m}", "f:2: timeouts.idle: '2m' is not a number; write 120 (seconds) without quotes"),
        ("timeouts: {idle: 010}", "f:2: timeouts.idle: '010' is not a number; write 10 without quotes"),
        ("timeouts: {idle: .nan}", "f:2: timeouts.idle: '.nan' is not a number; write a number above 0 up to 86400"),
        ("timeouts: {idle: 1e999}", "f:2: timeouts.idle: 1e999 is too high; write a number above 0 up to 86400"),
        ("server:", "f:2: server: is empty; write a mapping with keys such as host, port, bodyLimit"),
        ("server: 3", "f:2: server: is a single value; write a mapping with keys such as host, port, bodyLimit"),
        ("server: {host: [a]}", "f:2: server.host: is a list; write text"),
        ("server: {host: }", "f:2: server.host: is empty; write text, or remove the key"),
        ("server: {host: ''}", "f:2: server.host: is empty text; write text, or remove the key"),
        ("pools: {name: p}", "f:2: pools: is a mapping, not a list; begin each entry with '- '"),
        ("pools: p", "f:2: pools: is a single value, not a list; write a list: [a, b]"),
        ("pools: [{name: p, endpoints: []}]\nmodels: [{name: m, pool: p}]", "f:2: pools[0].endpoints: is an empty list; "
         "give at least 1"),
        ("currency: euro", "f:2: currency: 'euro' does not fit; write three capital letters such as USD"),
        (MODEL % "aliases: [1.10]", 'f:3: models[0].aliases[0]: is a number to YAML where text belongs; quote it: "1.10"'),
        (MODEL % "aliases: [true]", "f:3: models[0].aliases[0]: is true or false to YAML where text belongs; quote it:"),
        (MODEL % "aliases: ['a b']", "f:3: models[0].aliases[0]: 'a b' does not fit; write 1 to 128 letters, digits or"),
        (MODEL % 'aliases: ["a\\n"]', "f:3: models[0].aliases[0]: holds a line break or control character; write 1 to"),
        (ENDPOINT % "engine: vlm", "f:2: pools[0].endpoints[0].engine: 'vlm' is not one of the choices; write openai or "
         "vllm (did you mean vllm?)"),
        (ENDPOINT % "engine: ''", "f:2: pools[0].endpoints[0].engine: '' is not one of the choices; write openai or vllm"),
        (ENDPOINT % "priorityScheduling: yes", "f:2: pools[0].endpoints[0].priorityScheduling: 'yes' is neither true nor "
         "false; write true without quotes"),
        # prices and instants
        (PRICE % "input: 0.15", "f:3: models[0].prices[0].input: 0.15 is a floating-point number to YAML, which cannot "
         'hold most decimal prices exactly; write it in quotes: "0.15"'),
        (PRICE % 'input: "-1"', "f:3: models[0].prices[0].input: '-1' is negative; write a price of 0 or more"),
        (PRICE % 'input: "1e5"', "f:3: models[0].prices[0].input: '1e5' is not a price; write a decimal string such as"),
        (PRICE % 'input: "$1"', "f:3: models[0].prices[0].input: '$1' is not a price; write a decimal string such as"),
        (PRICE % "input: NaN", "f:3: models[0].prices[0].input: 'NaN' is not a price; write a decimal string such as"),
        (PRICE.replace("-01T00:00:00Z", "-01") % "input: 1", "f:3: models[0].prices[0].effectiveFrom: '2026-01-01' has no "
         "time and no time zone; write 2026-01-01T00:00:00Z"),
        (PRICE.replace("00Z", "00") % "input: 1", "f:3: models[0].prices[0].effectiveFrom: '2026-01-01T00:00:00' has no "
         "time zone; write 2026-01-01T00:00:00Z for UTC, or append an offset such as +01:00"),
        (PRICE.replace("01-01T", "13-01T") % "input: 1", "f:3: models[0].prices[0].effectiveFrom: '2026-13-01T00:00:00Z' "
         "is not an instant; write an instant with a time zone such as 2026-01-01T00:00:00Z"),
        # URLs
        (URL % "h:8000", "f:2: pools[0].endpoints[0].url: 'h:8000' does not fit; write an http:// or https:// URL such as"),
        (URL % "http://h:x", "f:2: pools[0].endpoints[0].url: 'http://h:x' is no valid URL; write it like http://10.0.0.5"),
        (URL % "http://h:1/v1/", "f:2: pools[0].endpoints[0].url: is not a base URL: Forebay adds /v1 itself; write http://h:1"),
        (URL % "http://h/a/v1/chat", "f:2: pools[0].endpoints[0].url: is not a base URL: Forebay adds /v1 itself; write http://h/a"),
        (URL % "http://h:1/?a=b", "f:2: pools[0].endpoints[0].url: has a query or fragment; write http://h:1"),
        ("stores: {valkey: embeded}", "f:2: stores.valkey: is neither embedded nor a URL; did you mean embedded?"),
        ("stores: {postgres: 'mysql://h/d'}", "f:2: stores.postgres: 'mysql://' is no scheme of postgres; write a URL like"),
        ("stores: {postgres: 'postgresql:///d'}", "f:2: stores.postgres: is a URL without a valid host and port; percent-"),
        ("stores: {postgres: 'postgresql://${PW}@h/d'}", "f:2: stores.postgres: the variable PW is not set or empty; set it"),
        ("stores: {postgres: 'postgresql://${P W}@h/d'}", "f:2: stores.postgres: holds '${' that begins no reference; write"),
        # between values
        (MODEL % "aliases: [m]", "f:3: models[0].aliases[0]: model name 'm' is taken, first in line 3; give each its own"),
        ("models: [{name: m, pool: p}]", "f:2: models[0].pool: there is no pool 'p'; add it under pools"),
        ("pools: [{name: small, endpoints: [{url: 'http://h'}]}]\nmodels: [{name: m, pool: smal}]",
         "f:3: models[0].pool: there is no pool 'smal'; did you mean small?"),
        ("pools:\n- {name: p, endpoints: [{url: 'http://h'}]}\n- {name: p, endpoints: [{url: 'http://h'}]}\n"
         "models: [{name: m, pool: p}]", "f:4: pools[1].name: pool 'p' is taken, first in line 3; give each its own"),
        ("pools: [{name: p, endpoints: [{url: 'http://h'}, {url: 'http://H/'}]}]\nmodels: [{name: m, pool: p}]",
         "f:2: pools[0].endpoints[1].url: URL 'http://h' is taken, first in line 2; give each its own"),
        ("server: {maxClients: 1000}", "f:2: server.maxClients: maxClients (1000) is less than maxInFlight (4096); each "
         "request in flight has a connection: raise maxClients"),
        ("server: {memory: 1000}", "f:2: server.memory: memoryPerProject exceeds memory; set it to at most 1000"),
        ("server: {maxInFlight: 100}", "f:2: server.maxInFlight: maxInFlightPerProject (512) exceeds maxInFlight (100); "
         "set maxInFlightPerProject to at most 100"),
        ("timeouts: {connect: 300}", "f:2: timeouts.connect: connect (300 s) is not below firstByte (300 s); lower connect "
         "or raise firstByte: connecting is a part of it"),
        ("timeouts:\n  total: 250", "f:3: timeouts.total: firstByte (300 s) is not within total (250 s); lower firstByte or"),
        ("timeouts: {idle: 5000}", "f:2: timeouts.idle: idle (5000 s) is not within total (3600 s); lower idle or raise"),
        (ENDPOINT % "engine: openai, priorityScheduling: true", "f:2: pools[0].endpoints[0].priorityScheduling: engine "
         "openai has no priorities; set engine to vllm, or remove the key"),
        ("pools: [{name: p, endpoints: [{url: 'http://h'}, {url: 'https://h'}]}]\nmodels: [{name: m, pool: p}]",
         "f:2: pools[0].endpoints[1].name: endpoint 'h' is taken, first in line 2; give each its own"),
        (FOUND % "", "f:2: pools[0].discovery.kubernetes.service: is missing; name the service of the engines, or give a"),
        (FOUND % "service: Engines", "f:2: pools[0].discovery.kubernetes.service: 'Engines' does not fit; write up to 63"),
        (FOUND % "service: e, port: 0", "f:2: pools[0].discovery.kubernetes.port: '0' does not fit; write a port's number"),
        (FOUND % "service: e, kvReplayPort: 1", "f:2: pools[0].discovery.kubernetes.kvReplayPort: kvReplayPort without "
         "kvEventsPort has no effect; set kvEventsPort, or remove the key"),
        (FOUND % "service: e, engine: openai, dataParallelRanks: 2", "f:2: pools[0].discovery.kubernetes.dataParallelRanks: "
         "engine openai cannot be told a data-parallel rank"),
        ("pools: [{name: p, discovery: {}}]\nmodels: [{name: m, pool: p}]", "f:2: pools[0].discovery: "
         "names no way to find engines; write kubernetes with keys such as service, port, or local: {}"),
        ("pools: [{name: p, discovery: {local: }}]\nmodels: [{name: m, pool: p}]", "f:2: pools[0].discovery: names no way"),
        ("pools: [{name: p, discovery: {local: {}, kubernetes: {service: e}}}]\nmodels: [{name: m, pool: p}]", "f:2: "
         "pools[0].discovery.local: stands beside kubernetes; keep one of them"),
        ("pools: [{name: p, discovery: {local: {directory: d}}}, {name: q, discovery: {local: {directory: d}}}]\n"
         "models: [{name: m, pool: p}, {name: n, pool: q}]", "f:2: pools[1].discovery.local.directory: directory 'd' is taken"),
        (FOUND % "service: ", "f:2: pools[0].discovery.kubernetes.service: is missing; name the service"),
        (FOUND % "selector: app=x y", "f:2: pools[0].discovery.kubernetes.selector: 'app=x y' does not fit; write a label"),
        (FOUND % "service: e, port: 65536", "f:2: pools[0].discovery.kubernetes.port: there is no port 65536; write one of"),
        (FOUND % "service: e, dataParallelRanks: 8, kvEventsPort: 65530, kvReplayPort: 6000", "f:2: pools[0].discovery."
         "kubernetes.kvEventsPort: there is no port 65530 for each of 8 ranks; write one of at most 65528"),
        (FOUND % "service: e, kvEventsPort: 8000, kvReplayPort: 8001", "f:2: pools[0].discovery.kubernetes.kvEventsPort: port"),
        (FOUND % "service: e, podLabels: {drain: forebay.dev/role}", "f:2: pools[0].discovery.kubernetes.podLabels.drain: "
         "label 'forebay.dev/role' is taken"),
        # warnings
        (FOUND % "service: e, kvEventsPort: events", "f:2: warning: pools[0].discovery.kubernetes.kvEventsPort: without "
         "kvReplayPort, what was cached before"),
        ("pools: [{name: p, endpoints: [{url: 'http://h'}]}]\nmodels: [{name: m, pool: p}, {name: n, pool: p}]",
         "f:3: warning: models[1].pool: pool 'p' is asked for model 'm', so this one gets its answers; give it a pool of"),
        (ENDPOINT % "apiKeyEnv: NO_SUCH", "f:2: warning: pools[0].endpoints[0].apiKeyEnv: the variable NO_SUCH is not set"),
        ("pools: [{name: p, endpoints: [{url: 'http://h'}]}]", "f:2: warning: pools[0]: no model uses pool 'p'; name it as"),
        ("timeouts: {firstByte: 5}", "f:2: warning: timeouts.firstByte: no heartbeat is ever sent before firstByte (5 s)"),
    ],
)  # fmt: skip
def test_each_fault_names_line_path_problem_and_remedy(text: str, fault: str) -> None:
    (line,) = said(text)
    assert line.startswith(fault)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [1", "f:1: not valid YAML: did not find expected ',' or ']'; check brackets, quotes and indentation there"),
        ("\ta: 1", "f:1: not valid YAML: found character that cannot start any token; indent with spaces, and quote values"),
        ("a: b: c", "f:1: not valid YAML: mapping values are not allowed in this context; check the indentation, and quote"),
        ("a: *hunter2", "f:1: not valid YAML: found undefined alias; define the anchor with &name above, or quote the value"),
        ("a: 1\nb: \x07", "f:2: not valid YAML: it holds a control character; remove the character"),
        ("a: 1\n---\nb: 1", "f:2: not valid YAML: but found another document; keep one document in a file"),
        ("a: 1\nb: !!python/object:os.system x", "f:2: tags such as !!str or !env are not read; write the value without"),
        ("[" * 60, "f:1: nested more than 50 deep; remove the extra brackets"),
        ("- 1", "f:1: is a list; write a mapping with keys such as apiVersion, server, timeouts"),
        ("server: &s {<<: *s}", "f:1: `<<` merges a mapping into itself; remove the alias"),
        ("server: {<<: 3}", "f:1: `<<` merges mappings only; name an anchor: <<: *name"),
        ("x" * (1 << 20) + "y", "f: larger than 1048576 bytes; split tenants and keys out of it"),
    ],
)
def test_unreadable_documents_are_one_fault(text: str, line: str) -> None:
    faults = check(text, "f", {})
    assert str(faults[0]).startswith(line)


def test_aliases_cannot_blow_up_a_small_file() -> None:
    bomb = "models:\n- &m {name: m, pool: p, aliases: &a [" + ",".join(["b"] * 1000) + "]}\n"
    bomb += "- {name: m, pool: p, aliases: *a}\n" * 1000
    assert "more than 200000 values once aliases are expanded" in str(check(bomb, "f", {})[0])


def test_all_faults_come_in_one_go_in_the_order_of_lines() -> None:
    text = """\
server: {prt: 1}
timeouts: {connect: soon}
pools:
  - name: p
    endpoints:
      - url: ftp://h
      - {url: http://h, engine: tgi}
models:
  - {name: m, pool: q}
  - {name: m, pool: p, prices: [{version: v, input: 0.5, output: 1}]}"""
    assert [line.split(": ")[0:2] for line in said(text)] == [
        ["f:2", "server.prt"],
        ["f:3", "timeouts.connect"],
        ["f:7", "pools[0].endpoints[0].url"],
        ["f:8", "pools[0].endpoints[1].engine"],
        ["f:10", "models[0].pool"],
        ["f:11", "models[1].name"],
        ["f:11", "models[1].prices[0].effectiveFrom"],
        ["f:11", "models[1].prices[0].input"],
    ]


@pytest.mark.parametrize(
    "text",
    [
        "stores: {postgres: 'postgresql://u:hunter2@h:port/d'}",
        "stores: {postgres: 'postgresql://u:hun#hunter2@h/d'}",
        "stores: {postgres: 'postgresql//u:hunter2@h/d'}",
        "stores: {postgres: 'host=h password=hunter2'}",
        "stores: {postgres: [hunter2]}",
        "stores: {valkey: 'valky://:hunter2@h'}",
        "stores: {valkey: {url: 'valkey://:hunter2@h'}}",
        "stores: {valkey: 'hunter2'}",
        "stores: {valkey: *hunter2}",
        "stores:\n  valkey://:hunter2@h: x",
        "stores: {keyHash: hunter2}",
        "secrets: {keyHash: \"hunter2\\n\"}",
        URL % "http://u:hunter2@h",
        URL % "http://u:hunter2@h:x",
        "pools: [{name: p, endpoints: [{url: 'http://u:hunter2@h'}, {url: 'http://u:hunter2@h'}]}]",
        "pools: [{name: p, endpoints: [{url: 'http://h/?key=hunter2'}, {url: 'http://h/?key=hunter2'}]}]",
        URL % "http://u:hunter2@",
        URL % "ftp://hunter2@h",
        URL % "http://h/?api_key=hunter2",
        ENDPOINT % "apiKeyEnv: sk-hunter2",
        ENDPOINT % "engine: 'http://hunter2@h'",
        "http://u:hunter2@h: 1",
    ],
)
def test_no_fault_repeats_a_password(text: str) -> None:
    faults = said(text)
    assert faults
    assert "hunter2" not in "\n".join(faults)


def test_a_clean_file_has_no_faults() -> None:
    assert said(MODEL % "aliases: [n, no, 'on']") == []
    assert check("", "f", {}) == []
    assert check("# nothing yet\n", "f", {}) == []


def test_a_file_without_api_version_is_warned_about() -> None:
    (fault,) = check("currency: EUR", "f", {})
    assert fault.warning
    assert str(fault) == "f:1: warning: apiVersion is missing; begin with apiVersion: forebay.dev/v1"


def test_another_api_version_is_refused() -> None:
    (fault,) = check("apiVersion: forebay.dev/v2", "f", {})
    assert str(fault) == "f:1: apiVersion: 'forebay.dev/v2' is not one of the choices; write forebay.dev/v1"
