"""Where a request would be placed, in words and numbers, for those who may ask (pure)."""

import msgspec

from forebay.platform.relay.call import Call
from forebay.router import Explanation


def explanation(call: Call, explained: Explanation) -> bytes:
    """The JSON answer of `/v1/explain/…`. Seconds are predictions, cached tokens what the router knows. `before`
    is how many that wait would be placed before it. Of the session only which header or member named it."""
    prompt, session = call.prompt, call.session
    return msgspec.json.encode(
        {
            "object": "forebay.explanation",
            "model": call.model,
            "prompt": {"tokens": prompt.tokens, "exact": prompt.exact, "rung": prompt.rung},
            "session": {"source": session.source} if session.key else None,
            "before": explained.before,
            "candidates": explained.candidates,
        }
    )
