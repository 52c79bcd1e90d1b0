"""A chat request as far as its text goes, and what rendering it comes to."""

from typing import Any

from msgspec import Struct

from forebay.router.prompt.causal_marks import Mark


class Chat(Struct, frozen=True):
    """Members of a chat completion request, as decoded from its JSON. Nothing in them is changed."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    template_kwargs: dict[str, Any] = {}
    reasoning_effort: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False


class TemplateError(Exception):
    """A template that does not compile, or a chat that it could not be rendered with; the message says why.

    `refused`: the template itself, or the rules that engines have for the request, turn it down, so an engine would
    answer with the same words. Otherwise an engine may still be able to render it: only this sandbox was not.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class Rendered(Struct, frozen=True):
    """The text that an engine would tokenize, from its character `start` on (0, or where the mark stood).

    Not `exact`: `text` is the beginning of what the engine renders, at most up to the first message with media, or
    with something that engines refuse; nothing is known of the rest. `marks` are in the order of their texts.
    """

    text: str
    start: int = 0
    exact: bool = True
    marks: tuple[Mark, ...] = ()
