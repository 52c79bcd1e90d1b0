"""Configuration from a file: every fault of it in one go, or a Config."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from forebay.platform.config import document, rules
from forebay.platform.config.decode import Decoder
from forebay.platform.config.faults import ConfigError, DocumentError, Fault, Report
from forebay.platform.config.model import Config

__all__ = ["DEFAULT_FILE", "ConfigError", "Fault", "check", "effective", "examine", "find", "load_config", "read"]

DEFAULT_FILE = Path("forebay.yaml")
STATE_DIR_ENV = "FOREBAY_STATE_DIR"
logger = logging.getLogger(__name__)


def load_config(path: Path | None = None) -> Config:
    """The configuration in `path`; None: `forebay.yaml` in the current directory, or the defaults where there is none.

    Logs warnings. Raises ConfigError with every fault.
    """
    config, faults = effective(path)
    if config is None:
        raise ConfigError(faults)
    for fault in faults:
        logger.warning("%s", fault)
    return config


def effective(path: Path | None) -> tuple[Config | None, list[Fault]]:
    """What `load_config(path)` would return, None if it would raise, and all faults and warnings."""
    found = find(path)
    if found is None:
        return _moved(Config()), []
    try:
        config, faults = examine(read(found), str(found))
    except ConfigError as error:
        return None, error.faults
    return config and _moved(config), faults


def _moved(config: Config) -> Config:
    """The environment wins over the file, so that one machine can keep several states."""
    state = os.environ.get(STATE_DIR_ENV)
    if not state:
        return config
    return msgspec.structs.replace(config, stores=msgspec.structs.replace(config.stores, state_dir=state))


def find(path: Path | None) -> Path | None:
    """The file that `load_config(path)` reads."""
    return path or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)


def check(text: str, source: str, environ: Mapping[str, str] | None = None) -> list[Fault]:
    """Every fault and warning of a configuration's text, in the order of its lines. `source` is what faults call it."""
    return examine(text, source, environ)[1]


def examine(text: str, source: str, environ: Mapping[str, str] | None = None) -> tuple[Config | None, list[Fault]]:
    """The configuration, None if it has faults other than warnings, and all its faults."""
    report = Report(source)
    data = _decoded(text, report)
    if data is not None:
        rules.judge(data, report, os.environ if environ is None else environ)
    faults = sorted(report.faults)
    if data is None or not all(fault.warning for fault in faults):
        return None, faults
    return msgspec.convert(data, Config), faults


def _decoded(text: str, report: Report) -> dict[str, Any] | None:
    kind = inspect.type_info(Config)
    assert isinstance(kind, inspect.StructType)
    try:
        if len(text) > document.SIZE_LIMIT:
            raise DocumentError(0, f"larger than {document.SIZE_LIMIT} bytes", "split tenants and keys out of it")
        data = Decoder(kind, report).decode(document.compose(text))
    except DocumentError as error:
        report.fault((), error.problem, error.fix, line=error.line)
        return None
    if len(report.lines) > 1 and ("apiVersion",) not in report.lines:
        report.fault((), "apiVersion is missing", "begin with apiVersion: forebay.dev/v1", warning=True)
    return data


def read(path: Path) -> str:
    """The file's text. Raises ConfigError if it cannot be read, is too large, or is not UTF-8."""
    try:
        with path.open("rb") as file:
            raw = file.read(document.SIZE_LIMIT + 1)
    except OSError as error:
        raise _unreadable(path, 0, f"cannot be read: {error.strerror}", "name a file that Forebay may read") from None
    if len(raw) > document.SIZE_LIMIT:
        raise _unreadable(path, 0, f"is larger than {document.SIZE_LIMIT} bytes", "name a configuration file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _unreadable(path, line, "is not UTF-8 text", "save it as UTF-8") from None


def _unreadable(path: Path, line: int, problem: str, fix: str) -> ConfigError:
    return ConfigError([Fault(str(path), line, "", problem, fix)])
