"""Templates that would show a continuing engine something else than what the first one had read and written."""

from datetime import datetime
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from forebay.router import Chat, Ladder, Memory, Prompter, Template, Tokenizer, Weights
from tests.tokenizers import save, small

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ CONTENT }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ASKED = Chat([{"role": "user", "content": "Hello"}])


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> Ladder:
    made = small(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False))
    return Ladder(Tokenizer.load(save(made, tmp_path_factory.mktemp("model"))))


def prompter(ladder: Ladder, source: str | None) -> Prompter:
    template = None if source is None else Template(source, special_tokens={}, clock=lambda: 0.0)
    today = lambda: datetime(2026, 1, 1)  # noqa: DTZ001, E731
    return Prompter("m", ladder, template, Weights(b"w" * 32), Memory(1 << 20, 1 << 20), today=today)


PLAIN = CHATML.replace("CONTENT", "m.content")
HARMONY = (  # as that of gpt-oss: what is to come names its channel itself
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}"
    "<|message|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
CASES: dict[str, tuple[str | None, str, bool]] = {
    "plain": (PLAIN, "One, two", True),
    "plain, space at its ends": (PLAIN, " One, two ", True),
    "trims, nothing to trim": (CHATML.replace("CONTENT", "m.content | trim"), "One, two", True),
    "trims the beginning": (CHATML.replace("CONTENT", "m.content | trim"), "\n\nOne, two", False),
    "trims the end": (CHATML.replace("CONTENT", "m.content | trim"), "One, two ", False),
    "takes out reasoning": (CHATML.replace("CONTENT", "m.content.split('</think>')[-1]"), "hm</think>One", False),
    "begins an answer with reasoning": (PLAIN.replace("assistant\n", "assistant\n<think>\n"), "One, two", False),
    "writes no assistant": (PLAIN.replace("m.content", "m.content if m.role == 'user' else ''"), "One, two", False),
    "Harmony": (HARMONY, "One, two", False),
    "refuses": (PLAIN + "{{ raise_exception('no') if messages[-1].role == 'assistant' }}", "One, two", False),
    "none": (None, "One, two", False),
}


@pytest.mark.parametrize("case", CASES)
def test_a_template_is_asked_whether_it_goes_on_exactly(ladder: Ladder, case: str) -> None:
    source, answer, continues = CASES[case]
    assert prompter(ladder, source).continues(ASKED, answer) is continues
    if continues:
        many: list[dict[str, Any]] = [*ASKED.messages, {"role": "assistant", "content": "a"}, *ASKED.messages]
        assert prompter(ladder, source).continues(Chat(many), answer)
