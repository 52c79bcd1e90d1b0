"""How a model's prompts are tokenized: in segments where that is exact, else whole.

Templates put special tokens between messages. Where a text may be cut behind those (ladder_cuts.py), each segment is
tokenized once and remembered (text.py). What was found by reasoning is tried out when a model loads, on texts made to
break it; one difference, and the model's texts are tokenized whole.
"""

from array import array
from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from forebay.router.prefix.keys import Ids
from forebay.router.prompt.ladder_cuts import Cuts, find_cuts
from forebay.router.prompt.ladder_limit import TooLongError, surely_more
from forebay.router.prompt.ladder_trials import probe, trials
from forebay.router.prompt.prompt import Rung
from forebay.router.prompt.tokenizer import Tokenizer, to_ids

SHORTEST = 128  # characters: a shorter segment is joined to the next, to tokenize it again costs little
MOST = 1024  # segments of one text, about
_BATCH = 1 << 16  # characters tokenized in one call
_ANY = 1 << 30  # tokens


class Segment(Struct):
    """A part of a text. `behind`: the special token before it ("" where the prompt begins). `cut`: the special token
    that ends it ("" where the text ends without). `end`: where it ends in the text. `count`: tokens up to there."""

    text: str
    behind: str
    cut: str
    end: int
    count: int = 0


class Ladder:
    """`rung` is SEGMENTS or WHOLE; `reason` says to an operator why."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Runs the self-test: some tenths of a second."""
        self.tokenizer = tokenizer
        self._usual: dict[tuple[str, str], Ids] = {}  # by what stands before a text, and the text
        self._cuts, self.reason = find_cuts(tokenizer)
        if self._cuts is not None:
            self._try_out(self._cuts)
        self.rung = Rung.WHOLE if self._cuts is None else Rung.SEGMENTS

    def __repr__(self) -> str:
        return f"<Ladder {self.rung}: {self.reason}>"

    @property
    def probe(self) -> str:
        """A text to have an engine tokenize: unless it becomes the same tokens there, this is not its tokenizer."""
        return probe(self.tokenizer.special_tokens.values() if self._cuts is None else self._cuts.tokens)

    def learn(self, text: str) -> None:
        """Keep the tokens of the end of `text`, which is the model's own and nobody's secret: the same words open the
        answer in every prompt of its template."""
        _, segments = self.encode(text, room=_ANY)
        if segments and (last := segments[-1]).behind and not last.cut:
            (ids,) = self.tokenizer.encode_batch((last.behind + last.text,))
            self._usual[last.behind, last.text] = to_ids((ids[1:],))

    def encode(self, text: str, *, behind: str = "", room: int, shortest: int = SHORTEST) -> tuple[Ids, list[Segment]]:
        """The ids of `text` and its segments. `behind`: the special token that stands before the text, "" where the
        prompt begins. Stops early with `TooLongError` if there are more than `room` tokens."""
        usual = self._usual.get((behind, text))
        if usual is not None and len(usual) <= room:
            return usual, [Segment(text, behind, "", len(text), len(usual))]
        ids = array("I")
        done: list[Segment] = []
        batch: list[Segment] = []
        size = 0
        for segment in self._segments(text, behind, max(shortest, len(text) // MOST)):
            batch.append(segment)
            size += len(segment.text)
            if size >= _BATCH:
                self._encode(batch, ids, room)
                done += batch
                batch, size = [], 0
        self._encode(batch, ids, room)
        done += batch
        return np.frombuffer(ids, np.uint32), done

    def _segments(self, text: str, behind: str, apart: int) -> Iterator[Segment]:
        start = 0
        for end, cut in self._cuts.find(text, apart) if self._cuts is not None else ():
            yield Segment(text[start:end], behind, cut, end)
            start, behind = end, cut
        if start < len(text):
            yield Segment(text[start:], behind, "", len(text))

    def _encode(self, batch: list[Segment], ids: "array[int]", room: int) -> None:
        for segment in batch:
            more = surely_more(self.tokenizer, segment.text, room - len(ids))
            if more:
                raise TooLongError(len(ids) + more)
        made = self.tokenizer.encode_batch([part.behind + part.text for part in batch]) if batch else []
        for segment, found in zip(batch, made, strict=True):
            ids.fromlist(found[1:] if segment.behind else found)
            segment.count = len(ids)
        if len(ids) > room:
            raise TooLongError(len(ids))

    def _try_out(self, cuts: Cuts) -> None:
        texts = trials(cuts.tokens)
        for text in texts:
            whole = self.tokenizer.encode(text)
            ids, _ = self.encode(text, room=_ANY, shortest=1)
            if not np.array_equal(ids, whole):
                self._cuts = None
                self.reason = f"cut at special tokens, this text becomes other tokens than whole: {text[:80]!r}"
                return
        self.reason = f"texts are cut behind {self.reason}; {len(texts)} texts became the same tokens cut and whole"


def byte_chunks(text: bytes) -> Ids:
    """Ids for a text whose tokenizer cannot be used: four bytes of UTF-8 stand for a token. They tell beginnings that
    are alike from others, and lengths roughly; they are not the engine's tokens."""
    return np.frombuffer(text.ljust(-(-len(text) // 4) * 4, b"\0"), "<u4")
