"""What an attempt has used, whenever it is asked."""

from forebay.platform.errors import ApiError
from forebay.platform.relay import answer
from forebay.platform.relay.accounting import Counted, count
from forebay.platform.relay.call import Call
from forebay.platform.relay.client import Client
from forebay.platform.relay.frames import StreamError, StreamTransform, View
from forebay.router import Endpoint, Usage

SMALL_ANSWER = 1 << 16  # bytes of a whole one that are not counted: about what a stream may hold


class Tally:
    """`whole` gathers an answer that is not streamed. `not_run`: the engine refused the request."""

    def __init__(
        self, call: Call, client: Client, endpoint: Endpoint, stream: StreamTransform, view: View
    ) -> None:
        self._call = call
        self._client = client
        self._endpoint = endpoint
        self._stream = stream
        self._view = view
        self.whole: list[bytes] = []
        self.not_run = False

    def keep(self, size: int) -> None:
        """Count so many bytes of a whole answer with what its project holds. Raises `ApiError`."""
        kept = max(self._client.kept, SMALL_ANSWER)
        if size > kept:
            self._client.hold(size - kept)
            self._client.kept = size

    def hear(self, data: bytes) -> None:
        """The rest of a whole answer that nobody waits for: of interest for its usage, as far as there is room."""
        try:
            self.keep(sum(map(len, self.whole)) + len(data))
        except ApiError:
            self.whole.clear()
        else:
            self.whole.append(data)

    @property
    def usage(self) -> Usage | None:
        """The engine's latest account."""
        return self._stream.usage() if self._call.inference.stream else self._whole_usage()

    @property
    def told(self) -> Usage | None:
        """The same, with zeros where it is known that there was nothing to tell yet."""
        usage = self.usage
        tells = self._call.inference.stream and self._endpoint.adapter.continuous_usage  # of its first token already
        tells = tells and self._stream.events <= self._view.choices
        if usage is None and (tells or self.not_run):
            usage = Usage(prompt_tokens=0, completion_tokens=0)
        return usage

    def counted(self, *, aborted: bool = False) -> Counted:
        return self.count(self.told, aborted=aborted)

    def count(self, usage: Usage | None, *, aborted: bool = False) -> Counted:
        return count(
            usage,
            n=self._call.inference.n,
            prompts=self._call.inference.prompts,
            per_choice=self._endpoint.adapter.prompt_counted_per_choice,
            aborted=aborted,
            generates=self._call.inference.api != "embeddings",
        )

    def _whole_usage(self) -> Usage | None:
        """Of an answer that was not relayed because the tenant left."""
        if not self.whole:
            return None
        try:
            return answer.transform(b"".join(self.whole), self._view).usage
        except StreamError:
            return None
