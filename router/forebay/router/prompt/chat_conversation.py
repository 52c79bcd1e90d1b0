"""The messages of a request as a template gets them, those of developers among them."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from forebay.router.prompt.causal import FOREVER
from forebay.router.prompt.chat_messages import Message, Unsure, as_system, merged_systems, normalized
from forebay.router.prompt.template_format import ContentFormat


class Conversation(Struct):
    """Of the messages from number `halt` on it is not known what an engine makes of them. `scattered`: they are not one
    for one those of the request. `developer`: the first was a developer's, which the template does not know."""

    messages: list[Message]
    halt: int = FOREVER
    scattered: bool = False
    developer: bool = False

    @property
    def certain(self) -> bool:
        return self.halt == FOREVER

    def has(self, role: str) -> bool:
        return any(message["role"] == role for message in self.messages)


def conversation(
    messages: Sequence[dict[str, Any]], form: ContentFormat, *, first: int = 0, developers: bool
) -> Conversation:
    """`first`: the number of the first one. `developers`: the template knows that role."""
    try:
        made = Conversation([normalized(message, form) for message in messages])
    except Unsure:
        made = _certain(messages, form, first)
    if not developers and any(message.get("role") == "developer" for message in messages):
        _replace_developers(made, first)
    return made


def _certain(messages: Sequence[dict[str, Any]], form: ContentFormat, first: int) -> Conversation:
    made = Conversation([])
    for message in messages:
        try:
            made.messages.append(normalized(message, form))
        except Unsure:
            break
    known = len(made.messages)
    made.halt = first + known
    made.messages.extend({"role": message.get("role")} for message in messages[known:])
    return made


def _replace_developers(made: Conversation, first: int) -> None:
    messages = [as_system(message) if message["role"] == "developer" else message for message in made.messages]
    systems = [number for number, message in enumerate(messages, first) if message["role"] == "system"]
    if systems == [0]:
        made.developer = True
        made.messages = messages
        return
    made.scattered = True
    if made.certain:
        made.messages = merged_systems(messages)
