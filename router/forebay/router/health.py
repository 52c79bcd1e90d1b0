"""Whether an endpoint can answer, by its probes and by what happens to requests (pure)."""

import logging

from msgspec import Struct

from forebay.router.routing import Health

log = logging.getLogger(__name__)

FAILURES_TO_DOWN = 2
_AVAILABLE = (Health.UP, Health.UNKNOWN)


class Well(Struct, frozen=True):
    """It answered a probe."""


class Card(Struct, frozen=True):
    """It answered, and serves the model. `lora` is set where the model is a LoRA adapter."""

    max_model_len: int | None = None
    lora: str | None = None


class Misfit(Struct, frozen=True):
    """It answered, and does not serve the model."""

    reason: str


class Failed(Struct, frozen=True):
    """`at_once`: it is certainly gone (connection refused)."""

    reason: str
    at_once: bool = False


Finding = Well | Card | Misfit | Failed


class Condition:
    """An endpoint's state, moved by what probes find and by what the relay tells."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.health = Health.UNKNOWN
        self.reason = "not probed yet"
        self.max_model_len: int | None = None
        self.lora: str | None = None
        self.failures = 0

    def __repr__(self) -> str:
        return f"<Condition {self.name} {self.health} [{self.failures} failures]>"

    @property
    def available(self) -> bool:
        return self.health in _AVAILABLE

    @property
    def proven(self) -> bool:
        """Up. One that is not may have come back with another model: its next probe asks for that."""
        return self.health is Health.UP

    def failed(self, reason: str, *, at_once: bool = False) -> None:
        """A probe or an exchange failed for the endpoint's fault."""
        self.failures += 1
        if self.health is not Health.DOWN and (at_once or self.failures >= FAILURES_TO_DOWN):
            log.warning("endpoint %s is down: %s", self.name, reason)
            self.health, self.reason = Health.DOWN, reason

    def answered(self) -> None:
        self.failures = 0

    def probed(self, finding: Finding) -> None:
        match finding:
            case Failed(reason, at_once):
                self.failed(reason, at_once=at_once)
            case Misfit(reason):
                if self.reason != reason:
                    log.error("endpoint %s %s", self.name, reason)
                self.health, self.reason = Health.MISCONFIGURED, reason
            case Card(max_model_len, lora):
                self.max_model_len, self.lora = max_model_len, lora
                self._up()
            case Well():
                if self.proven:
                    self._up()

    def _up(self) -> None:
        if self.health is not Health.UP:
            log.info("endpoint %s is up", self.name)
        self.health, self.reason, self.failures = Health.UP, "", 0
