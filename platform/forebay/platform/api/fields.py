"""Which members a request may have, and what each must look like. Everything else never reaches an engine.

Sources: OpenAI's reference for names, ranges and lengths; vLLM 0.32's request models for the sampling extras. Those in
`IGNORED` are OpenAI's own and change nothing here; those in `SERVER_SET` steer engines, so a tenant's copy is dropped.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

MAX_CHOICES = 128
MAX_MESSAGES = 2048
MAX_INPUTS = 2048  # of one embeddings request, as OpenAI has it
TEMPLATE_RESERVED = frozenset(  # the engine's own arguments beside them, which would clash
    {
        "chat_template",
        "tokenize",
        "return_dict",
        "return_tensors",
        "return_assistant_tokens_mask",
        "messages",
        "conversation",
        "self",
        "model_config",
        "tokenizer",
    }
)
Probability = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Count = Annotated[int, Meta(ge=0, le=1 << 31)]
Positive = Annotated[int, Meta(ge=1, le=1 << 31)]
Stop = str | Annotated[list[str], Meta(max_length=16)] | None
TokenIds = Annotated[list[Count], Meta(max_length=1 << 20)]
Tier = Annotated[str, Meta(max_length=64)]  # which there are, the operator says


class StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False  # OpenAI's padding against traffic analysis; accepted, never added


class Message(Struct):
    """Other members (tool calls, names, vendor fields) pass as they came."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None


class _Sampling(Struct, kw_only=True):
    model: Annotated[str, Meta(min_length=1, max_length=256)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=16)] | None = None
    max_tokens: Positive | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    stop: Stop = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    service_tier: Tier | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=1024)] | None = None
    response_format: dict[str, Any] | None = None
    # sampling extras of vLLM and SGLang
    top_k: Annotated[int, Meta(ge=-1, le=1 << 31)] | None = None
    min_p: Probability | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    stop_token_ids: TokenIds | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    bad_words: Annotated[list[str], Meta(max_length=1024)] | None = None


class ChatRequest(_Sampling, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=512)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class CompletionRequest(_Sampling, kw_only=True):
    prompt: str | list[Any]
    echo: bool | None = None
    suffix: str | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class EmbeddingRequest(Struct, kw_only=True):
    model: Annotated[str, Meta(min_length=1, max_length=256)]
    input: str | list[Any]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Positive | None = None
    service_tier: Tier | None = None


Request = ChatRequest | CompletionRequest | EmbeddingRequest

NOT_FORWARDED = frozenset({"model", "stream", "stream_options", "service_tier", "prompt_cache_key"})
IGNORED = frozenset(
    {
        "metadata",
        "store",
        "user",
        "safety_identifier",
        "prompt_cache_options",
        "prompt_cache_retention",
        "verbosity",
        "prediction",
        "moderation",
    }
)
SERVER_SET = frozenset(
    {
        "priority",
        "cache_salt",
        "request_id",
        "session_id",
        "kv_transfer_params",
        "ec_transfer_params",
        "vllm_xargs",
        "chat_template",
        "mm_processor_kwargs",
        "media_io_kwargs",
        "prompt_logprobs",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "use_beam_search",
        "stream_interval",
        "extra_key",
        "rid",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "routed_dp_rank",
        "data_parallel_rank",
        "session_params",
    }
)
UNSUPPORTED = frozenset({"audio", "functions", "function_call", "web_search_options", "best_of", "modalities"})
