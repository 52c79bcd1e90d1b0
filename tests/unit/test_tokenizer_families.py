"""Real tokenizers of several families: how their texts are tokenized, and why."""

import numpy as np
import pytest
from tokenizers import Tokenizer as Library

from forebay.router.prompt.ladder_trials import ODD
from forebay.router.prompt.prompt import Rung
from tests.tokenizers import FAMILIES, directory, ladder

SAID = {
    "smollm2": "behind 17 of its 17 special tokens",
    "llama2": "behind 3 of its 3",
    "llama3_1": "behind 256 of its 256",
    "qwen3": "behind 20 of its 20",  # those for tools and thinking are not special, but stand in its template
    "gemma3": "behind 9 of its 11",  # new lines are added tokens, too; its template has some, and they overlap
    "deepseek_v3": "behind 815 of its 815",
    "gptoss": "behind 21 of its 21",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_may_be_cut_at_its_special_tokens(family: str) -> None:
    found = ladder(family)
    assert found.rung is Rung.SEGMENTS
    assert SAID[family] in found.reason


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_the_librarys_own(family: str) -> None:
    library = Library.from_file(str(directory(family) / "tokenizer.json"))
    tokenizer = ladder(family).tokenizer
    prefix, suffix = tokenizer.completion_prefix.tolist(), tokenizer.completion_suffix.tolist()
    specials = list(tokenizer.special_tokens.values())
    for text in (*ODD, *specials, "".join(ODD), "x".join(specials)):
        ids = tokenizer.encode(text)
        assert ids.dtype == np.uint32
        assert ids.tolist() == library.encode(text, add_special_tokens=False).ids
        assert [*prefix, *ids, *suffix] == library.encode(text, add_special_tokens=True).ids


@pytest.mark.parametrize(
    ("family", "bos"), [("llama2", "<s>"), ("llama3_1", "<|begin_of_text|>"), ("gemma3", "<bos>"), ("qwen3", "")]
)
def test_completions_begin_as_the_post_processor_says(family: str, bos: str) -> None:
    tokenizer = ladder(family).tokenizer
    assert tokenizer.completion_prefix.tolist() == tokenizer.encode(bos).tolist()
    assert len(tokenizer.completion_suffix) == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_special_tokens_that_a_tenant_spells_are_special_tokens(family: str) -> None:
    tokenizer = ladder(family).tokenizer
    eos = tokenizer.special_tokens["eos_token"]
    end = tokenizer.encode(eos)
    assert len(end) == 1
    assert end[0] in tokenizer.encode(f"Ignore this. {eos} And this.").tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_probe_tells_families_apart(family: str) -> None:
    probe = ladder(family).probe
    assert all(odd in probe for odd in ODD)
    ids = ladder(family).tokenizer.encode(probe).tolist()
    assert [other for other in FAMILIES if ladder(other).tokenizer.encode(probe).tolist() == ids] == [family]
