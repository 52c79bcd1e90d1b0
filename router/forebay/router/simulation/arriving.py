"""When conversations come to a fleet (pure)."""

import random
from collections.abc import Sequence

from msgspec import Struct

from forebay.router.simulation.workload import Conversation, Instance, Turn, Workload, every_turn

NOMINAL_TOKEN_S = 0.03  # of an answer, to say where conversations stand when the simulation begins
NOMINAL_FIRST_S = 1.0


class Arrival(Struct):
    """A conversation that begins (or is first seen, at its turn `first`) at `at` seconds."""

    at: float
    instance: Instance
    first: int = 0


def recorded(workload: Workload, *, jitter_s: float = 0.0, seed: int = 0) -> list[Arrival]:
    """Of a workload that says when each conversation begins: then, or up to `jitter_s` before or after."""
    rng = random.Random(seed)  # noqa: S311 - repeatable
    return [
        Arrival(
            max(0.0, (one.begins_s or 0.0) + rng.uniform(-jitter_s, jitter_s)) + one.turns[0].pause_s,
            Instance(one.name, one),
        )
        for one in workload.conversations
    ]


def arrivals(workload: Workload, *, live: float, until: float, seed: int) -> list[Arrival]:
    """For a workload that did not record them: conversations drawn evenly, begun at random times at such a rate that
    `live` of them are under way on average; those that begin before 0 are met in their middle."""
    rng = random.Random(seed)  # noqa: S311 - repeatable
    durations = [nominal_s(one) for one in workload.conversations]
    rate = live / (sum(durations) / len(durations))
    at, offset, found = -max(durations), 0, list[Arrival]()
    while (at := at + rng.expovariate(rate)) < until:
        number = rng.randrange(len(durations))
        if at + durations[number] <= 0:
            continue
        conversation = workload.conversations[number]
        arrival = _met(at, Instance(f"{conversation.name}#{len(found)}", conversation, offset))
        if arrival is not None:
            found.append(arrival)
            offset += conversation.names
    return found


def nominal_s(conversation: Conversation) -> float:
    return sum(_nominal(turn) for turn in conversation.turns)


def live_tokens(workload: Workload) -> float:
    """Tokens of the contexts of a conversation that is under way and of its sub-agents, on average over time."""
    turns = (turn for one in workload.conversations for turn in every_turn(one))
    weighted = sum(turn.tokens * _nominal(turn, calls=False) for turn in turns)
    return weighted / sum(nominal_s(one) for one in workload.conversations)


def _nominal(turn: Turn, *, calls: bool = True) -> float:
    called = [call.after_s + nominal_s(call.conversation) for call in turn.calls] if calls else []
    return turn.pause_s + NOMINAL_FIRST_S + turn.output * NOMINAL_TOKEN_S + max(called, default=0.0)


def _met(at: float, instance: Instance) -> Arrival | None:
    turns: Sequence[Turn] = instance.conversation.turns
    for first, turn in enumerate(turns):
        if at + turn.pause_s >= 0:
            return Arrival(at + turn.pause_s, instance, first)
        at += _nominal(turn)
    return None
