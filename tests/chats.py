"""Conversations of one pool on a clock of the test's, and what it costs to push them out."""

import random
from itertools import count

import numpy as np

from forebay.router.contexts import GONE_S, INFLOW_S, Contexts
from forebay.router.prefix.keys import Keys, Weights
from tests.virtual import tokens

WEIGHTS = Weights(b"a secret of the tests")
_EVER = 10_000  # tokens that a calm endpoint takes longer to store than anybody is idle


def keys(*pieces: tuple[str, int]) -> Keys:
    return WEIGHTS.extend(WEIGHTS.seed(), 0, tokens(*pieces))[1]


def few_keys(number: int) -> Keys:
    """Of a prompt that nothing else begins like."""
    return np.array([number * 2 + 1, number * 2 + 2], np.uint64)


class Chats:
    """`turn` sends a prompt and answers it."""

    def __init__(self, most: int | None = None) -> None:
        self.contexts = Contexts() if most is None else Contexts(most)
        self.now = 5_000.0
        self._fresh = count(1 << 40)

    def send(self, endpoint: str, *pieces: tuple[str, int], session: str = "") -> int:
        size = sum(size for _, size in pieces)
        return self.contexts.placed(endpoint, size, keys(*pieces), self.now, session=session).number

    def turn(
        self, endpoint: str, *pieces: tuple[str, int], session: str = "", answer: int = 50, returns: bool | None = None
    ) -> int:
        number = self.send(endpoint, *pieces, session=session)
        size = sum(size for _, size in pieces)
        self.contexts.ended(number, endpoint, size + answer, returns, self.now)
        return number

    def one_shot(self, number: int, endpoint: str = "a", *, size: int = 80, returns: bool | None = None) -> None:
        context = self.contexts.placed(endpoint, size, few_keys(number), self.now)
        self.contexts.ended(context.number, endpoint, size, returns, self.now)

    def fresh(self, endpoint: str, size: int = 1_000, *, returns: bool | None = None) -> None:
        """A conversation that has not been there."""
        self.one_shot(next(self._fresh), endpoint, size=size, returns=returns)

    def wanted(self, endpoint: str, count: float) -> float:
        return self.contexts.displaced(endpoint, count, self.now)[0]

    def calm(self) -> None:
        """Nothing has been stored for so long that whatever lies in a cache stays as long as anybody is idle."""
        self.now += 40 * INFLOW_S

    def chance(self, idle_s: float, returns: bool | None = None) -> float:
        """What one thinks of a context that has been idle for so long, by what it costs to push it out for good."""
        self.calm()
        asked = self.contexts.placed("asked", _EVER, few_keys(next(self._fresh)), self.now, stored=0)
        self.contexts.ended(asked.number, "asked", _EVER, returns, self.now)
        self.now += idle_s
        wanted = self.wanted("asked", 1 << 20) / _EVER
        self.contexts.abandoned(asked.number)
        self.contexts.cleared("asked")
        return wanted


def learn(chats: Chats, *, conversations: int = 3_000, returning: float = 0.7, seed: int = 1) -> None:
    """Turns whose tool answers within half a minute, as a rule; so many conversations end at each turn."""
    rng = random.Random(seed)
    due: list[tuple[float, int, int]] = []
    begun = 0
    while begun < conversations or due:
        chats.now += 1.0
        chats.contexts.expire(chats.now)
        ready = [one for one in due if one[0] <= chats.now]
        due = [one for one in due if one[0] > chats.now]
        if begun < conversations:
            begun += 1
            ready.append((chats.now, begun, 1))
        for _, name, turn in ready:
            chats.turn("a", (f"chat {name}", 64), ("turns", 32 * turn), returns=None)
            if rng.random() < returning:
                due.append((chats.now + min(rng.lognormvariate(3, 0.8), GONE_S / 2), name, turn + 1))
    chats.now += GONE_S + 1
    for _ in range(20):
        chats.contexts.expire(chats.now)
