"""What a double can be told at start. Field names follow vLLM's flags where one exists."""

import msgspec

from tests.doubles.engine.faults import Fault


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of 0 mean "as fast as possible"; times are seconds, sizes are tokens unless they say blocks."""

    model: str = "smollm2-135m-instruct"
    max_model_len: int = 8192
    block_size: int = 32
    cache_blocks: int = 2048
    """KV capacity in blocks, at least max_model_len / block_size."""
    prefill_rate: float = 0.0
    """Prompt tokens a second, one prompt after another; cached tokens cost nothing."""
    token_seconds: float = 0.0
    """Between two tokens of one answer. The first comes with the end of the prefill."""
    tick_seconds: float = 0.001
    """Streams due within one tick are written together. Set to `token_seconds`, it imitates a real engine's step."""
    max_running: int = 256
    max_queued: int | None = None
    """`--max-num-queued-reqs`: more in flight than this answers 503."""
    answer_tokens: int | None = 64
    """Where an answer ends by itself (`stop`), its end-of-text token included. None: only at max_tokens."""
    prompt_tokens_details: bool = True
    scale_out: bool = True
    embeddings: bool = False
    tokenize: bool = True
    """False: POST /tokenize is not there."""
    auto_tools: bool = False
    """`--enable-auto-tool-choice`: with tools and tool_choice "auto", the answer to a user's message is a call."""
    priority_scheduling: bool = False
    kv_events: str | None = None
    """ZMQ PUB endpoint, such as tcp://127.0.0.1:5601 (port 0: chosen). None: no events."""
    kv_replay: str | None = None
    """ZMQ ROUTER endpoint of the replay."""
    kv_topic: str = ""
    kv_replay_steps: int = 10_000
    kv_encoding: str = "vllm"
    """How events are written, by the engine that does it so: see encodings.py."""
    kv_hashes: str = "int"
    """Or "bytes": blocks are named by 32 bytes, as vLLM does with VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0."""
    kv_topic_frame: bool = True
    kv_replay_topic_frame: bool = True
    """False: rows of the replay have no topic, as before vLLM 0.26 and SGLang 0.5.22."""
    shutdown_timeout: float = 30.0
    request_log: int = 256
    seed: int = 0
    """Of the faults' probabilities."""
    faults: tuple[Fault, ...] = ()
