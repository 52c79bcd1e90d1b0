"""Where the text ends when the last message is to be continued rather than answered.

Source: transformers 5, utils/chat_template_utils.py: the message is tagged, and the text cut at the tag, which shows
how much white space the template leaves there.
"""

from typing import Any

from forebay.router.prompt.chat import TemplateError

_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


def add_tag(message: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """A copy of the message with the tag at the end of its text, and that text. Raises `TemplateError`."""
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + _TAG}, content
    for number in range(len(content) - 1, -1, -1):
        if "text" in content[number]:
            part = content[number]
            tagged = {**part, "text": part["text"] + _TAG}
            return {**message, "content": [*content[:number], tagged, *content[number + 1 :]]}, part["text"]
    raise TemplateError("the last message has no text that could be continued", refused=True)


def cut_at_tag(text: str, continued: str) -> str:
    """Raises `TemplateError` if the template did not write the message."""
    tag = text.rfind(_TAG.strip())
    if tag < 0 or continued.strip() not in text:
        raise TemplateError("the chat template does not write the message that is to be continued", refused=True)
    return text[:tag] if text.startswith(_TAG, tag) else text[:tag].rstrip()
