"""Where a request would be placed, in words and numbers, for those who may ask (pure)."""

from collections.abc import Sequence

import msgspec

from forebay.platform.relay.call import Call
from forebay.router import Candidate


def explanation(call: Call, candidates: Sequence[Candidate]) -> bytes:
    """The JSON answer of `/v1/explain/…`. Seconds are predictions, cached tokens what the router knows. Of the
    session only which header or member named it."""
    prompt, session = call.prompt, call.session
    return msgspec.json.encode(
        {
            "object": "forebay.explanation",
            "model": call.model,
            "prompt": {"tokens": prompt.tokens, "exact": prompt.exact, "rung": prompt.rung},
            "session": {"source": session.source} if session.key else None,
            "candidates": candidates,
        }
    )
