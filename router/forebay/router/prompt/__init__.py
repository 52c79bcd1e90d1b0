"""A request's prompt as the engine will see it: rendered, tokenized, counted, and remembered for the next turn."""
