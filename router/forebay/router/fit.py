"""A least-squares fit of a sum of costs that is kept up online (pure).

    seconds ≈ Σ cost_i · amount_i

Each observation is taken relative to what was expected of it, so that a prompt of 100 tokens teaches as much as one of
100,000; one that is far off counts as at most `BOUND` times too long or short. Older ones fade, the first ones quickly.
What is not observed keeps about its value, and costs stay above nothing. Not their inverse but the normal equations are
kept: with forgetting, recursive least squares lose their definiteness when inputs repeat, and run away.
"""

import math
from collections.abc import Collection, Sequence

BOUND = 4.0
FORGET = 0.99  # an observation counts a tenth after 230 more
_EARLY = 2.0  # observations by which the first ones have faded
_RIDGE = 0.1  # observations' worth of belief in each cost as it is
_LEAST = 0.01  # of its prior that a cost keeps


class Fit:
    """`priors`: costs to begin with, all above 0. `costs`: as they are known now. `anchored`: what is not observed goes
    back to its prior, so that amounts which always come together share their seconds as those say."""

    def __init__(self, priors: Sequence[float], *, anchored: bool = False) -> None:
        self.priors = tuple(priors)
        self._anchored = anchored
        self.observations = 0
        size = len(self.priors)
        self._factors = [1.0] * size  # costs relative to their priors
        self._products = [[0.0] * size for _ in range(size)]
        self._sums = [0.0] * size

    @property
    def costs(self) -> list[float]:
        return [factor * prior for factor, prior in zip(self._factors, self.priors, strict=True)]

    def expected(self, amounts: Sequence[float]) -> float:
        return sum(cost * amount for cost, amount in zip(self.costs, amounts, strict=True))

    def learn(self, amounts: Sequence[float], seconds: float) -> None:
        expected = self.expected(amounts)
        if not (0 < expected < math.inf and 0 < seconds < math.inf):
            return
        self.observations += 1
        keep = min(FORGET, self.observations / (self.observations + _EARLY))
        row = [prior * amount / expected for prior, amount in zip(self.priors, amounts, strict=True)]
        seen = min(max(seconds / expected, 1 / BOUND), BOUND)
        self._products = [
            [keep * known + x * y for known, y in zip(line, row, strict=True)]
            for line, x in zip(self._products, row, strict=True)
        ]
        self._sums = [keep * known + x * seen for known, x in zip(self._sums, row, strict=True)]
        self._factors = self._bounded()

    def _bounded(self) -> list[float]:
        """Those that would be too small stay at their least, and the others take over what they said."""
        least: set[int] = set()
        while True:
            found = self._solved(least)
            small = {number for number, factor in enumerate(found) if factor < _LEAST}
            if not small:
                return found
            least |= small

    def _solved(self, least: Collection[int]) -> list[float]:
        """Gaussian elimination; the ridge keeps every pivot above nothing. `least` are not solved for."""
        size = len(self.priors)
        lines = [
            [value + (_RIDGE if at == number else 0.0) for at, value in enumerate(line)]
            + [self._sums[number] + _RIDGE * (1.0 if self._anchored else self._factors[number])]
            for number, line in enumerate(self._products)
        ]
        for number in least:
            lines[number] = [1.0 if at == number else 0.0 for at in range(size)] + [_LEAST]
        for pivot in range(size):
            for below in range(pivot + 1, size):
                share = lines[below][pivot] / lines[pivot][pivot]
                lines[below] = [low - share * high for low, high in zip(lines[below], lines[pivot], strict=True)]
        found = [0.0] * size
        for at in range(size - 1, -1, -1):
            rest = sum(lines[at][other] * found[other] for other in range(at + 1, size))
            found[at] = (lines[at][size] - rest) / lines[at][at]
        return found
