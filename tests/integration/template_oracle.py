"""Run by the engine's own interpreter: what vLLM makes of chat requests, up to the text that it would tokenize.

Reads one JSON object a line: `template`, `body` (a request's members) and `now`. Writes one a line: `text`, or `error`.
The first line written says for which model directory's tokenizer this is, and which special tokens it has.
"""
# mypy: ignore-errors

import json
import sys
from datetime import datetime
from types import SimpleNamespace

from transformers import AutoTokenizer
from transformers.utils import chat_template_utils
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers import merge_kwargs
from vllm.renderers.chat_utils import parse_chat_messages
from vllm.renderers.hf import resolve_chat_template_content_format, safe_apply_chat_template

MODEL = SimpleNamespace(
    allowed_local_media_path="",
    allowed_media_domains=None,
    code_revision=None,
    enable_prompt_embeds=False,
    hf_config=SimpleNamespace(model_type="llama"),
    multimodal_config=None,
    revision=None,
    trust_remote_code=False,
)


class Clock:
    at = None

    @classmethod
    def now(cls):
        return cls.at


def text_of(tokenizer, template, body):
    """In the order of vllm/renderers/online_renderer.py: `render_chat`, `preprocess_chat`, `render_messages`."""
    request = ChatCompletionRequest.model_validate(body)
    tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
    defaults = merge_kwargs({}, {"tools": tools, "tokenize": False})
    params = request.build_chat_params(template, "auto").with_defaults(defaults)
    form = resolve_chat_template_content_format(
        params.chat_template, params.chat_template_kwargs.get("tools"), "auto", tokenizer, model_config=MODEL
    )
    messages, _, _ = parse_chat_messages(request.messages, MODEL, form)
    return safe_apply_chat_template(MODEL, tokenizer, messages, **params.get_apply_chat_template_kwargs())


def main():
    out = sys.stdout
    sys.stdout = sys.stderr
    chat_template_utils.datetime = Clock
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    print(json.dumps(tokenizer.special_tokens_map), file=out, flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        Clock.at = datetime.fromisoformat(case["now"])
        try:
            answer = {"text": text_of(tokenizer, case["template"], case["body"])}
        except Exception as error:  # whatever it is, the engine refuses the request
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
