"""The configuration that a local Forebay runs under: what the user gave, completed with the engines started here."""

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import msgspec

from forebay.platform.config.engines import Discovery, Endpoint, LocalProcesses, Pool
from forebay.platform.config.model import Config, Model, PriceVersion
from forebay.platform.config.show import as_yaml
from forebay.platform.local.commands import LocalError
from forebay.platform.local.paths import MODEL, Paths, write_private
from forebay.platform.local.vllm import CONTEXT, Replica

ALIAS = "smollm2"
# Made-up prices of a small model, so that the first bill shows every token class.
PRICES = (
    PriceVersion(
        version="local-1",
        effective_from=datetime(2025, 1, 1, tzinfo=UTC),
        input=Decimal("0.10"),
        output=Decimal("0.40"),
        cache_read=Decimal("0.02"),
    ),
)


def with_local_engines(config: Config, replicas: Sequence[Replica], paths: Paths) -> Config:
    """`config` with a pool of the local replicas and the model they serve. It must have no pools of its own."""
    endpoints = tuple(
        Endpoint(
            url=replica.url,
            name=replica.name,
            engine="vllm",
            served_model=MODEL,
            priority_scheduling=True,
            kv_events=replica.events,
            kv_replay=replica.replay,
        )
        for replica in replicas
    )
    model = Model(
        name=MODEL,
        pool="local",
        aliases=(ALIAS,),
        context_length=CONTEXT,
        tokenizer=str(paths.weights),
        prices=PRICES,
    )
    pool = Pool(name="local", endpoints=endpoints, discovery=Discovery(local=LocalProcesses()))  # others may join
    return msgspec.structs.replace(config, pools=(pool,), models=(model,))


def in_state_directory(config: Config, paths: Paths) -> Config:
    """`config` with its state in `paths`, wherever a process that reads it is started."""
    return msgspec.structs.replace(config, stores=msgspec.structs.replace(config.stores, state_dir=str(paths.state)))


def write(config: Config, path: Path) -> None:
    """As YAML that the front door reads, to this account only, since store URLs may hold passwords."""
    head = "# Written by `forebay up` at each start; edit your own forebay.yaml instead.\n"
    write_private(path, head + as_yaml(config, passwords=True))


def first_model(config: Config) -> str:
    """The shortest name of the first model that chats, for the examples that are printed."""
    for model in config.models:
        if "chat" in model.apis:
            return min((model.name, *model.aliases), key=len)
    raise LocalError("No model of the configuration answers chat completions, which the demo needs. Add one to models.")
