"""Models that engines build prompts for without a template are known by their files."""

from typing import Any

import pytest

from forebay.router.prompt.template_models import untemplated


@pytest.mark.parametrize(
    ("config", "files", "why"),
    [
        ({"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"]}, [], "Harmony"),
        ({"architectures": ["DeepseekV32ForCausalLM"]}, [], "DeepSeek V3.2"),
        ({"model_type": "mistral"}, ["consolidated-00001-of-00002.safetensors", "tekken.json"], "Mistral"),
        ({"model_type": "mistral"}, ["consolidated.safetensors", "tokenizer.model.v3"], "Mistral"),
    ],
)
def test_engines_go_their_own_way_for_some(config: dict[str, Any], files: list[str], why: str) -> None:
    assert why in (untemplated(config, files) or "")


@pytest.mark.parametrize(
    ("config", "files"),
    [
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, ["model.safetensors", "tokenizer.json"]),
        ({"model_type": "mistral"}, ["model.safetensors", "tekken.json"]),
        ({"architectures": None}, []),
    ],
)
def test_the_template_counts_for_others(config: dict[str, Any], files: list[str]) -> None:
    assert untemplated(config, files) is None
