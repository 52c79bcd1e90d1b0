"""Where an answer can be cut: between two tokens, whatever an engine keeps back for a stop string."""

from hypothesis import given
from hypothesis import strategies as st

from forebay.platform.relay.seam import Delta, Seam

pieces = st.lists(st.text("abcé☀ \n", max_size=6), max_size=24)


def usage(tokens: int) -> bytes:
    return b'{"prompt_tokens":9,"completion_tokens":%d}' % tokens


def sent(tokens: list[str], held: int) -> list[str]:
    """What vLLM sends with each token: its detokenizer's rule (v1/engine/detokenizer.py)."""
    out, text, given_out = [], "", 0
    for token in tokens:
        text += token
        end = len(text) - held
        out.append(text[given_out:end] if end > given_out else "")
        given_out = max(given_out, end)
    return out


def streamed(tokens: list[str], held: int) -> Seam:
    seam = Seam(held)
    for number, text in enumerate(sent(tokens, held), 1):
        seam.see(Delta(content=text), None, usage(number))
        seam.shown()
    return seam


@given(pieces, st.integers(0, 9))
def test_a_cut_is_between_two_tokens_and_no_stop_string_lies_across_it(tokens: list[str], held: int) -> None:
    cut = streamed(tokens, held).cut(greedy=True)
    seen = "".join(sent(tokens, held))
    assert cut.text + cut.seen == seen
    assert cut.tokens is not None
    assert "".join(tokens[: cut.tokens]) == cut.text
    assert len(cut.seen) <= held + 6  # what is said twice is no more than what was kept back, and a token


@given(pieces, st.integers(0, 9))
def test_what_is_sampled_goes_on_from_the_very_end(tokens: list[str], held: int) -> None:
    cut = streamed(tokens, held).cut(greedy=False)
    assert (cut.text, cut.seen) == ("".join(sent(tokens, held)), "")
    whole = sum(len("".join(tokens[:number])) <= len(cut.text) for number in range(1, len(tokens) + 1))
    assert cut.tokens is not None
    assert abs(cut.tokens - whole) <= held + tokens.count("")  # by their share of what is between two known ends


def test_what_is_sampled_is_counted_however_much_the_engine_keeps_back() -> None:
    tokens = [*("x" for _ in range(1900))]
    cut = streamed(tokens, 1000).cut(greedy=False)
    assert (len(cut.text), cut.tokens) == (900, 900)


@given(pieces, pieces, st.integers(0, 9))
def test_a_second_cut_counts_the_tokens_of_both_engines(first: list[str], second: list[str], held: int) -> None:
    seam = streamed(first, held)
    cut = seam.cut(greedy=True)
    seam.resumed(cut.known)
    seen = cut.seen
    for number, text in enumerate(sent(second, held), 1):
        known = min(len(text), len(seen))
        seen = seen[known:]  # as if it said the same
        seam.see(Delta(content=text[known:]), None, usage(number))
        seam.shown()
    again = seam.cut(greedy=True)
    assert again.tokens is not None
    assert cut.known <= again.tokens <= cut.known + len(second)
    if again.tokens > cut.known:
        assert len(again.text) == len(cut.text) + len("".join(second[: again.tokens - cut.known]))


def test_what_the_client_did_not_get_is_not_part_of_it() -> None:
    seam = streamed(["a", "b"], 0)
    seam.see(Delta(content="c"), None, usage(3))
    seam.forget()
    assert seam.cut(greedy=True).text == "ab"


def test_a_long_answer_is_kept_whole() -> None:
    words = [f" {number}" for number in range(2000)]
    cut = streamed(words, 0).cut(greedy=True)
    assert (cut.text, cut.tokens) == ("".join(words), 2000)
