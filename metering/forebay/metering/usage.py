"""From an engine's counts to disjoint token classes, and from those to what a tenant pays for.

Engines and OpenAI report cached tokens as a part of the prompt; here every token is in exactly one class, so that
`input_uncached + cache_read + cache_write` is the prompt. Source: docs/metering.md.
"""

from forebay.metering.records import Quantities, Status

# Far above any request. It keeps a broken engine's number from overflowing a bigint or a sum in the ledger.
MAX_TOKENS = 10**12

_BILLED = frozenset({Status.COMPLETED, Status.CANCELLED, Status.CONTINUED})
_NOTHING = Quantities()


def quantities(
    prompt_tokens: int | None,
    cached: int | None = None,
    cache_write: int | None = None,
    completion: int | None = None,
    reasoning: int | None = None,
) -> Quantities:
    """Split OpenAI-style counts (cached and written are parts of the prompt, reasoning of the completion).

    None means that the engine did not say, which counts as zero; an explicit zero is never replaced by an estimate.
    Numbers that contradict each other are clamped so that the classes still add up to the prompt: reads before writes,
    both within the prompt, reasoning within the completion, nothing below zero.
    """
    prompt = _clamp(prompt_tokens, MAX_TOKENS)
    read = _clamp(cached, prompt)
    write = _clamp(cache_write, prompt - read)
    output = _clamp(completion, MAX_TOKENS)
    return Quantities(prompt - read - write, read, write, output, _clamp(reasoning, output))


def is_measured(prompt_tokens: int | None, completion: int | None) -> bool:
    """Whether the engine itself said how much it read and wrote: the value of `UsageRecord.measured`."""
    return prompt_tokens is not None and completion is not None


def billable(status: Status, reported: Quantities, *, continues: bool = False) -> Quantities:
    """What the tenant pays for: `reported` when the answer was completed, continued or the client left, else nothing.

    Who `continues` another attempt has read prompt and answer so far once more: only its output counts.

    `reported` are the quantities by OpenAI's usage convention, as on the wire: a request for several choices counts
    its prompt once, although an engine's own counters may count it once per choice.
    """
    if status not in _BILLED:
        return _NOTHING
    return Quantities(output=reported.output, reasoning=reported.reasoning) if continues else reported


def add(a: Quantities, b: Quantities) -> Quantities:
    """The sum, class by class."""
    return Quantities(
        a.input_uncached + b.input_uncached,
        a.cache_read + b.cache_read,
        a.cache_write + b.cache_write,
        a.output + b.output,
        a.reasoning + b.reasoning,
    )


def _clamp(value: int | None, limit: int) -> int:
    return min(max(value or 0, 0), limit)
