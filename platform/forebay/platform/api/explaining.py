"""Where a request would be placed, in words and numbers, for those who may ask (pure)."""

import msgspec

from forebay.platform.relay.call import Call
from forebay.router import Explanation


def explanation(call: Call, explained: Explanation) -> bytes:
    """The JSON answer of `/v1/explain/…`. Seconds are predictions, cached tokens what the router knows. `tier` is the
    one that would serve it, `weight` its tenant's beside others, `before` how many that wait would be placed before it,
    `refused` why it would not be let in. Of the session only which header or member named it."""
    prompt, session, refused = call.prompt, call.session, explained.refused
    return msgspec.json.encode(
        {
            "object": "forebay.explanation",
            "model": call.model,
            "prompt": {"tokens": prompt.tokens, "exact": prompt.exact, "rung": prompt.rung},
            "session": {"source": session.source} if session.key else None,
            "tier": explained.tier,
            "weight": explained.weight,
            "before": explained.before,
            "predicted_s": explained.predicted_s,
            "refused": {"reason": refused.why, "retry_after_s": round(refused.retry_s, 3)} if refused else None,
            "candidates": explained.candidates,
        }
    )
