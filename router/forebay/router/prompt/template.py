"""A model's chat template: from a chat request to the text that an engine would tokenize, whole or from a mark on.

The text is what vLLM 0.32 and transformers 5 make of the same request, character for character. What a template can do
is bounded (template_limits.py) and closed off (template_sandbox.py). How a rendering can go on where an earlier one had
the same beginning: causal_run.py.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.runtime import Context
from msgspec import structs

from forebay.router.prompt.causal import Halt, Messages, NeedWhole, View
from forebay.router.prompt.causal_marks import Base, Given, Mark, known_before
from forebay.router.prompt.causal_plan import Plan, plan
from forebay.router.prompt.causal_rewrite import resuming, watching
from forebay.router.prompt.causal_run import HOOKS, Run
from forebay.router.prompt.chat import Chat, Rendered, TemplateError
from forebay.router.prompt.chat_conversation import Conversation, conversation
from forebay.router.prompt.chat_ending import add_tag, cut_at_tag
from forebay.router.prompt.chat_messages import Unsure
from forebay.router.prompt.chat_variables import variables
from forebay.router.prompt.template_filters import FILTERS_HERE, TESTS_HERE
from forebay.router.prompt.template_format import ContentFormat, content_format
from forebay.router.prompt.template_guard import Guard, refused
from forebay.router.prompt.template_limits import Budget, Clock, LimitReached, Limits
from forebay.router.prompt.template_sandbox import RUN, Environment, Refusal

Program = Callable[[Context], Iterator[str]]
NOTHING = Rendered("", exact=False)
_BROKEN = (jinja2.TemplateError, SyntaxError, RecursionError, MemoryError, OverflowError, ValueError, TypeError)


class Template:
    """`special_tokens` by the names that templates know them by. `defaults` and `tools_despite_none` are what an
    operator may have told the engines: `--default-chat-template-kwargs`, `--exclude-tools-when-tool-choice-none`.
    `form`: `--chat-template-content-format`. `clock` tells seconds, best those that the thread has computed. Raises
    `TemplateError` for a source that does not compile. May be used by several threads at once."""

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str],
        clock: Clock,
        limits: Limits | None = None,
        form: ContentFormat | None = None,
        defaults: Mapping[str, Any] | None = None,
        tools_despite_none: bool = True,
    ) -> None:
        self._limits = limits or Limits()
        self._clock = clock
        self._special_tokens = dict(special_tokens)
        self._defaults = dict(defaults or {})
        self._tools_despite_none = tools_despite_none
        self._environment = Environment({**FILTERS_HERE, **HOOKS}, TESTS_HERE)
        self._developers = '"developer"' in source or "'developer'" in source
        self._continues = "content" in source
        if len(source) > self._limits.source:
            raise TemplateError(f"the chat template has {len(source)} characters, more than {self._limits.source}")
        if RUN in source:
            raise TemplateError(f"the chat template uses the name {RUN!r}, which is taken")
        try:
            self._compile(source, form)
        except _BROKEN as error:
            raise TemplateError(f"the chat template does not compile: {_said(error)}") from None

    def render(self, chat: Chat, now: datetime, *, marked: bool = True) -> Rendered:
        """`now` is what the template is told if it asks for the date: local time, as engines have it. Not `marked`: the
        text alone, for a third of the time. Raises `TemplateError`."""
        _check(chat)
        now = now.replace(tzinfo=None)  # engines tell local time without saying where
        try:
            given = self._variables(chat)
        except Unsure:
            return NOTHING
        talk = conversation(chat.messages, self.form, developers=self._developers)
        if talk.scattered and not talk.certain:
            return NOTHING
        continued = self._tag(chat, talk)
        watch = self._plan is not None and (marked or not talk.certain)
        rendered = self._watched(talk, given, now, continued) if watch else None
        if rendered is None:
            if not talk.certain:
                return NOTHING
            rendered = self._unwatched(talk, given, now)
        return rendered if continued is None else _cut(rendered, continued)

    def resume(self, mark: Mark, chat: Chat, now: datetime) -> Rendered | None:
        """What follows `mark`, which is one of this template's. `chat` is the request, with only those messages that
        follow the first `mark.start`; its other members are equal to those that the mark was made with. None if only
        rendering the whole conversation shows what comes of it."""
        base = mark.base
        if base.owner is not self:
            raise ValueError("the mark is another template's")
        if mark.start + len(chat.messages) <= mark.messages:
            return None
        now = now.replace(tzinfo=None)
        if any(now.strftime(pattern) != text for pattern, text in mark.state.dates):
            return None
        try:
            _check(chat)
            given = self._variables(chat if self._reads_tools(base) else structs.replace(chat, tools=None))
            talk = conversation(chat.messages, self.form, first=mark.start, developers=self._developers)
            if talk.scattered or (base.developer and talk.has("system")):
                return None
            continued = self._tag(chat, talk)
            rendered = self._resumed(mark, talk, given, now, continued)
            return rendered if rendered is None or continued is None else _cut(rendered, continued)
        except (Unsure, TemplateError):
            return None

    def _compile(self, source: str, form: ContentFormat | None) -> None:
        parse = self._environment.parse
        tree = parse(source)
        if (tag := refused(tree)) is not None:
            raise TemplateError(f"the chat template has a tag that is not supported: {tag}")
        self.form = form or content_format(tree)
        self._plan: Plan | None = plan(tree)
        self._plain = self._program(Guard().visit(tree))
        if self._plan is not None:
            self._watching = self._program(watching(parse(source), self._plan))
            self._resuming = self._program(resuming(parse(source), self._plan))

    def _program(self, tree: nodes.Template) -> Program:
        tree.set_environment(self._environment)
        code = self._environment.compile(tree)
        return self._environment.template_class.from_code(self._environment, code, {}).root_render_func

    def _variables(self, chat: Chat) -> dict[str, Any]:
        return variables(chat, self._special_tokens, self._defaults, tools_despite_none=self._tools_despite_none)

    def _reads_tools(self, base: Base) -> bool:
        """Whether what is still to be rendered may."""
        assert self._plan is not None
        if -1 in self._plan.tooled or any(type(value) is Given for value in base.values.values()):
            return True
        return base.rerun and not self._plan.tooled <= base.steady

    def _tag(self, chat: Chat, talk: Conversation) -> str | None:
        """Tag the end of the message that is to be continued; what it says there, or None where none is."""
        if not chat.continue_final_message or not talk.certain:
            return None
        if not self._continues:
            raise TemplateError("the chat template writes no content that could be continued", refused=True)
        talk.messages[-1], text = add_tag(talk.messages[-1])
        return text

    def _run(self, messages: Messages, given: dict[str, Any], now: datetime, **kwargs: Any) -> Run:
        budget = Budget(self._limits, self._clock)
        return Run(messages, budget, given, now, owner=self, plan=self._plan, **kwargs)

    def _watched(
        self, talk: Conversation, given: dict[str, Any], now: datetime, continued: str | None
    ) -> Rendered | None:
        """None where it fails: perhaps only because it is watched."""
        messages = Messages(talk.messages, halt=talk.halt)
        run = self._run(messages, given, now, developer=talk.developer)
        exact = True
        try:
            self._drive(self._watching, run, {**given, "messages": View(messages)})
        except LimitReached as limit:
            raise TemplateError(str(limit)) from None
        except Halt:
            exact = False
        except Exception:  # noqa: BLE001 - templates raise anything
            return None
        marks = () if talk.scattered else run.marks(messages.total - (continued is not None))
        return Rendered("".join(run.pieces), 0, exact, marks)

    def _resumed(
        self, mark: Mark, talk: Conversation, given: dict[str, Any], now: datetime, continued: str | None
    ) -> Rendered | None:
        messages = Messages(talk.messages, first=mark.start, earlier=known_before(mark), halt=talk.halt)
        run = self._run(messages, given, now, mark=mark)
        program = self._watching if mark.base.rerun else self._resuming
        exact = True
        try:
            self._drive(program, run, {**given, "messages": View(messages)})
        except (LimitReached, NeedWhole):
            return None
        except Halt:
            exact = False
        except Exception:  # noqa: BLE001 - templates raise anything
            return None
        if not run.began:
            return None
        marks = run.marks(messages.total - (continued is not None))
        return Rendered("".join(run.pieces[run.opened :]), mark.length, exact, marks)

    def _unwatched(self, talk: Conversation, given: dict[str, Any], now: datetime) -> Rendered:
        run = self._run(Messages(talk.messages), given, now)
        try:
            self._drive(self._plain, run, {**given, "messages": talk.messages})
        except LimitReached as limit:
            raise TemplateError(str(limit)) from None
        except Refusal as error:
            raise TemplateError(str(error), refused=True) from None
        except RecursionError:
            raise TemplateError("the chat template calls itself too deeply") from None
        except Exception as error:  # noqa: BLE001 - templates raise anything
            raise TemplateError(f"the chat template fails: {_said(error)}") from None
        return Rendered("".join(run.pieces))

    def _drive(self, program: Program, run: Run, given: dict[str, Any]) -> None:
        given[RUN] = run
        context = Context(self._environment, {**self._environment.globals, **given}, None, {})
        append, left = run.pieces.append, self._limits.chars
        for piece in program(context):
            append(piece)
            left -= len(piece)
            if left < 0:
                run.budget.stop(f"writes more than {self._limits.chars} characters")


def _check(chat: Chat) -> None:
    if chat.continue_final_message and chat.add_generation_prompt:
        raise TemplateError(
            "'continue_final_message' and 'add_generation_prompt' cannot both be set: the last message is either"
            " continued or answered.",
            refused=True,
        )


def _cut(rendered: Rendered, continued: str) -> Rendered:
    """The text up to the tag. Raises `TemplateError`."""
    text = cut_at_tag(rendered.text, continued)
    if rendered.start and not text:
        raise TemplateError("what is cut off may begin before the mark")
    end = rendered.start + len(text)
    return Rendered(text, rendered.start, rendered.exact, tuple(mark for mark in rendered.marks if mark.length <= end))


def _said(error: BaseException) -> str:
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"line {error.lineno}: {error.message}"
    return str(error) or type(error).__name__
