"""Models whose prompts engines do not build with the chat template that comes with them (pure).

Source: vLLM 0.32, config/model.py (by architecture), tokenizers/registry.py (Mistral's own files) and
renderers/online_renderer.py (gpt-oss). An engine that was told another `--tokenizer-mode` may differ again.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from typing import Any

_RENDERERS = {
    "DeepseekV32ForCausalLM": "DeepSeek V3.2",
    "DeepseekV4ForCausalLM": "DeepSeek V4",
    "DeepseekV4ForConditionalGeneration": "DeepSeek V4",
    "DeepseekV41ForCausalLM": "DeepSeek V4.1",
    "InklingForCausalLM": "Inkling",
    "InklingForConditionalGeneration": "Inkling",
    "KimiK3ForConditionalGeneration": "Kimi K3",
    "MoonshotKimiaForCausalLM": "Kimi Audio",
}
_WEIGHTS, _TOKENIZERS = "consolidated*.safetensors", ("tekken.json", "tokenizer.model.v*")


def untemplated(config: Mapping[str, Any], files: Iterable[str]) -> str | None:
    """Why engines do not use the template of a model with this config.json and these file names; None if they do."""
    if config.get("model_type") == "gpt_oss":
        return "engines build prompts of gpt-oss by the Harmony format"
    for architecture in config.get("architectures") or ():
        if name := _RENDERERS.get(architecture):
            return f"engines have a renderer of their own for {name}"
    names = list(files)
    tokenizers = any(fnmatch(name, pattern) for name in names for pattern in _TOKENIZERS)
    if tokenizers and any(fnmatch(name, _WEIGHTS) for name in names):
        return "engines take Mistral's own tokenizer where its files are there"
    return None
