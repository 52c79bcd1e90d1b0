"""Texts made to break the claim that a tokenizer may be cut at its special tokens, and to compare with an engine's."""

# ruff: noqa: RUF001
from collections.abc import Iterable, Sequence
from random import Random

ODD = (
    "",
    " ",
    "  ",
    "\n",
    "\n\n",
    " \n ",
    "\r\n",
    "\t\t",
    "\u00a0",
    "\u3000",
    "\u2028",
    "\u200b",
    "\ufeff",
    "\x00",
    "▁",
    "▁▁a",
    "a",
    "A",
    "0",
    "1234567890",
    "3.14159",
    "It's we'LL they'd",
    "hello world",
    " leading",
    "trailing ",
    "   spaces   within   ",
    "user\n",
    "assistant\n\n",
    "e\u0301",
    "\u0301",
    "\u0301a",
    "n\u0303o\u0308",
    "ﬁ ﬂ",
    "\u1100\u1161\u11a8",
    "각",
    "İıß",
    "日本語の文章",
    "中文，标点。",
    "العربية \u202eمرحبا\u202c",
    "עִבְרִית",
    "हिन्दी",
    "ไทย",
    "👩‍👩‍👧‍👦",
    "👍🏽",
    "🇩🇪🇫🇷",
    "☺️",
    "𝒳𝒴",
    "def f(x):\n    return x[0] if x else {}\n",
    '{"a": [1, 2.5e-3, null], "b": "\\n"}',
    "\tif (a&&b||!c) { d->e; }\r\n",
    "https://example.com/a?b=c#d",
    "<", "<|", "|>", "</", ">", "[", "]", "｜", "<｜",
    "...", "!!!", "—–-", "''", "\"", "`",
    "x" * 300,
    "Donaudampfschifffahrtsgesellschaft" * 4,
    " " * 200,
    "\n" * 60,
    "ab" * 150,
    "=" * 90,
)  # fmt: skip


def trials(tokens: Sequence[str]) -> list[str]:
    """The same texts each time: each of `tokens` between odd pieces, tokens broken in half, conversations."""
    random = Random(0)  # noqa: S311
    texts = list(ODD)
    texts += [random.choice(ODD) + token + random.choice(ODD) for token in tokens]
    some = tokens if len(tokens) <= 16 else [*tokens[:8], *random.sample(tokens, 8)]
    for token in some:
        half = len(token) // 2
        texts += [token[:half] + token + token[half:], token[1:] + token[:-1], token[:half] + " " + token[half:]]
        texts += [token + odd + token for odd in ODD]
    texts += [_conversation(some, random) for _ in range(40)]
    return texts


def probe(tokens: Iterable[str]) -> str:
    """One text with all that is odd, some of `tokens` between."""
    some = list(tokens)[:16] or [""]
    return " leading" + "".join(some[at % len(some)] + odd for at, odd in enumerate(ODD))


def _conversation(tokens: Sequence[str], random: Random) -> str:
    parts: list[str] = []
    for _ in range(random.randrange(1, 30)):
        parts += random.choices(ODD, k=random.randrange(4))
        parts.append(random.choice(tokens))
    return "".join(parts) + random.choice(ODD)
