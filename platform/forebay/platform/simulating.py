"""Simulations side by side, one process for each at a time."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from msgspec import Struct

from forebay.router.simulation.formats import read
from forebay.router.simulation.trial import Bounds, Figures, Shape, bounds, figures, policy, run
from forebay.router.simulation.workload import Workload

LOOKS_S = 0.2  # between two looks at how far they are

_state: dict[str, Any] = {}  # of a process: the workload, and where it tells how far it is


class Trial(Struct, frozen=True):
    """`bounded`: whether to say what any policy could have served from caches, beside what this one did."""

    policy: str
    shape: Shape
    seed: int
    bounded: bool = False


class Result(Struct, frozen=True):
    """`cpu_s`: of the simulation, all of it."""

    trial: Trial
    figures: Figures
    bounds: Bounds | None
    cpu_s: float


class TrialsError(Exception):
    """A process of the simulation has died."""


def simulate(
    path: Path, workload: Workload, trials: Sequence[Trial], *, processes: int | None = None,
    told: Callable[[float], None] = lambda share: None,
) -> list[Result]:  # fmt: skip
    """In the order of `trials`. `workload` was read from `path`. `told` is called with the share of the work that is
    done. Raises `TrialsError`, and what a trial raises."""
    count = min(processes or os.cpu_count() or 1, len(trials))
    if count <= 1:
        return [
            _measure(workload, trial, lambda share, number=number: told((number + share) / len(trials)))  # type: ignore[misc]
            for number, trial in enumerate(trials)
        ]
    # A forked process has the workload already; where there is no fork it reads the file itself.
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    shares = context.Array("d", len(trials), lock=False)
    _state["workload"] = workload
    with ProcessPoolExecutor(count, context, _begin, (path, shares)) as executor:
        # Our own policy takes many times as long as the others: it goes first, so that the last processes end together.
        order = sorted(range(len(trials)), key=lambda number: trials[number].policy != "forebay")
        futures = {number: executor.submit(_in_process, number, trials[number]) for number in order}
        try:
            _follow(list(futures.values()), lambda: told(sum(shares) / len(trials)))
            return [futures[number].result() for number in range(len(trials))]
        except BrokenProcessPool:
            raise TrialsError("a process of the simulation has died; it may have been out of memory") from None
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _follow(futures: Sequence[Future[Result]], look: Callable[[], None]) -> None:
    pending = set(futures)
    while pending:
        done, pending = wait(pending, LOOKS_S, FIRST_COMPLETED)
        for future in done:
            future.result()
        look()


def _begin(path: Path, shares: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    _state["shares"] = shares
    if "workload" not in _state:
        _state["workload"] = read(path)


def _in_process(number: int, trial: Trial) -> Result:
    shares = _state["shares"]

    def told(share: float) -> None:
        shares[number] = share

    return _measure(_state["workload"], trial, told)


def _measure(workload: Workload, trial: Trial, told: Callable[[float], None]) -> Result:
    shape = trial.shape
    began = time.process_time()
    done = run(workload, shape, policy(trial.policy, shape), trial.seed, lambda at: told(min(1.0, at / shape.until_s)))
    cpu_s = time.process_time() - began
    found = Result(trial, figures(done, shape), bounds(workload, done, shape) if trial.bounded else None, cpu_s)
    told(1.0)
    return found
