"""Whether an endpoint can answer, by its probes and by what happens to requests (pure). Times are seconds of one clock.

One that fails is put out for a while, longer each time until it has stood for long, and is let back in gently: a probe
must find it well, and it gets one request, and when that is answered another, until some were. Failures are weighed
against answers, so that one that fails every other time is found, and a few among many answers put nobody out.
"""

import logging

from msgspec import Struct

from forebay.router.routing import Health

log = logging.getLogger(__name__)

FAILURES = 2.0  # the weight at which an endpoint is put out: two in a row, or every other one for some time
FORGIVEN = 0.6  # what a good answer leaves of earlier failures
FAILED_WITHIN_S = 900.0  # a failed request that is older says nothing: one may take minutes to fail
FIRST_OUT_S, LONGEST_OUT_S = 1.0, 120.0
MOST_FAILURES = 4.0  # weight that is remembered
STOOD_S = 300.0  # up for that long, it is as if it had never been out
ANSWERS_TO_UP = 3

# How an endpoint stands among those of its pool, the best last. One that failed requests and is well by its probes is
# asked again where there is nobody else: the requests may have been at fault.
OUT, DOUBTED, RETURNING, WHOLE = range(4)
_STANDINGS = {
    Health.UNKNOWN: WHOLE, Health.UP: WHOLE, Health.RETURNING: RETURNING, Health.EJECTED: DOUBTED,
    Health.DOWN: OUT, Health.MISCONFIGURED: OUT,
}  # fmt: skip


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
    """An endpoint's state, moved by what probes find and by what the relay tells. `ejections`: how often it was put out
    since it last stood for long; `ejected`: since the start."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.health = Health.UNKNOWN
        self.reason = "not probed yet"
        self.max_model_len: int | None = None
        self.lora: str | None = None
        self.back_at = 0.0
        self.ejections = 0
        self.ejected = 0
        self._probes = 0.0  # weight of failed ones
        self._requests = 0.0
        self._request_failed_at = 0.0
        self._up_at: float | None = None
        self._answers = 0  # since it returned

    def __repr__(self) -> str:
        return f"<Condition {self.name} {self.health} [{self.ejections} ejections]>"

    @property
    def standing(self) -> int:
        return _STANDINGS[self.health]

    @property
    def available(self) -> bool:
        return self.standing >= RETURNING

    @property
    def proven(self) -> bool:
        """Known to serve the model. One that is not may have come back with another: its next probe asks for that."""
        return self.health in (Health.UP, Health.RETURNING)

    def failed(
        self, reason: str, now: float, *, at_once: bool = False, probe: bool = False, spare: bool = True
    ) -> None:
        """A probe or an exchange failed for the endpoint's fault. Not `spare`: its pool cannot do without it, so a
        request's failure alone does not put it out."""
        weight = self._weigh(now, probe=probe)
        if self.health is Health.DOWN or not (at_once or weight >= FAILURES or self.health is Health.RETURNING):
            return
        if at_once or probe:
            self._out(Health.DOWN, reason, now)
        elif spare and self.available:
            self._out(Health.EJECTED, reason, now)

    def answered(self, now: float) -> None:
        """A request."""
        self._requests *= FORGIVEN
        if self.health is Health.RETURNING:
            self._answers += 1
            if self._answers >= ANSWERS_TO_UP:
                self._up(now)

    def probed(self, finding: Well | Card | Misfit, now: float) -> None:
        """A probe was answered."""
        if isinstance(finding, Misfit):
            if self.reason != finding.reason:
                log.error("endpoint %s %s", self.name, finding.reason)
            self.health, self.reason, self.back_at = Health.MISCONFIGURED, finding.reason, 0.0
            return
        if isinstance(finding, Card):
            self.max_model_len, self.lora = finding.max_model_len, finding.lora
        elif not self.proven:
            return
        self._probes *= FORGIVEN
        if self.health in (Health.UNKNOWN, Health.MISCONFIGURED):
            self._up(now)
        elif self.health in (Health.DOWN, Health.EJECTED):
            self._back(now)

    def _weigh(self, now: float, *, probe: bool) -> float:
        """One more failure, and what all of its kind weigh with it."""
        if probe:
            self._probes = min(self._probes + 1, MOST_FAILURES)
            return self._probes
        earlier = self._requests if now - self._request_failed_at <= FAILED_WITHIN_S else 0.0
        self._requests, self._request_failed_at = min(earlier + 1, MOST_FAILURES), now
        return self._requests

    def _out(self, health: Health, reason: str, now: float) -> None:
        """Put out, longer each time. One that never was up and does not answer is still starting."""
        if self.health is Health.UP and self._up_at is not None and now - self._up_at >= STOOD_S:
            self.ejections = 0
        if self.available and (self._up_at is not None or health is Health.EJECTED):
            self.ejections += 1
            self.ejected += 1
            self.back_at = now + min(FIRST_OUT_S * 2 ** min(self.ejections - 1, 30), LONGEST_OUT_S)
        log.warning("endpoint %s is %s: %s", self.name, health, reason)
        self.health, self.reason = health, reason

    def _back(self, now: float) -> None:
        """A probe found it well."""
        self.back_at = min(self.back_at, now + LONGEST_OUT_S)  # of a clock that was set back
        if now < self.back_at:
            return
        if self._up_at is None and not self.ejections:
            self._up(now)
            return
        log.info("endpoint %s is let back in", self.name)
        self.health, self.back_at = Health.RETURNING, 0.0
        self.reason = "gets one request at a time until some are answered"
        self._probes = self._requests = 0.0
        self._answers = 0

    def _up(self, now: float) -> None:
        log.info("endpoint %s is up", self.name)
        self.health, self.reason, self.back_at = Health.UP, "", 0.0
        self._probes = self._requests = 0.0
        self._up_at = now
