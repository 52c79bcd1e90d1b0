"""What a model directory's files come to: special tokens, templates, tokens added, and what is refused."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, pre_tokenizers, processors

from forebay.router.prompt.tokenizer import Tokenizer
from forebay.router.prompt.tokenizer_files import TokenizerError
from tests.tokenizers import save, small

BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
SPECIAL = [AddedToken("<bos>", special=True, normalized=False), AddedToken("<eos>", special=True, normalized=False)]


def load(path: Path, **config: object) -> Tokenizer:
    return Tokenizer.load(save(small(pre_tokenizer=BYTES, added=SPECIAL), path, **config))


def test_special_tokens_are_read_as_text_or_from_objects(tmp_path: Path) -> None:
    tokenizer = load(
        tmp_path,
        bos_token={"__type": "AddedToken", "content": "<bos>", "lstrip": False, "normalized": True},
        eos_token="<eos>",
        pad_token=None,
        extra_special_tokens={"image_token": "<image>"},
        model_max_length=10,
    )
    assert tokenizer.special_tokens == {"bos_token": "<bos>", "eos_token": "<eos>", "image_token": "<image>"}


def test_special_tokens_map_counts_where_the_configuration_lists_no_added_tokens(tmp_path: Path) -> None:
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<map>"}}))
    assert load(tmp_path, eos_token="<eos>").special_tokens == {"eos_token": "<map>"}
    assert load(tmp_path, eos_token="<eos>", added_tokens_decoder={}).special_tokens == {"eos_token": "<eos>"}


def test_special_tokens_that_the_vocabulary_lacks_are_added(tmp_path: Path) -> None:
    tokenizer = load(
        tmp_path,
        eos_token="<|done|>",
        additional_special_tokens=["<|more|>", {"content": "<|object|>"}],
        added_tokens_decoder={"9": {"content": "<|late|>", "special": True, "lstrip": True}},
    )
    for content in ("<|done|>", "<|more|>", "<|object|>", "<|late|>"):
        assert len(tokenizer.encode(content)) == 1
    assert len(tokenizer.encode("a  <|late|>")) == 2
    assert len(tokenizer.encode("<|unheard|>")) > 1


def test_template_file_wins_over_the_configuration(tmp_path: Path) -> None:
    assert load(tmp_path).chat_template is None
    assert load(tmp_path, chat_template="configured").chat_template == "configured"
    (tmp_path / "chat_template.jinja").write_text("from a file")
    assert load(tmp_path, chat_template="configured").chat_template == "from a file"


def test_of_named_templates_the_default_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert load(tmp_path, chat_template=named).chat_template == "plain"
    assert load(tmp_path, chat_template=named[:1]).chat_template is None


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    library = small(pre_tokenizer=BYTES)
    library.enable_truncation(4)
    library.enable_padding(length=9)
    tokenizer = Tokenizer.load(save(library, tmp_path))
    assert len(tokenizer.encode("The quick brown fox jumps over the lazy dog" * 3)) > 9
    assert len(tokenizer.encode("a")) == 1


def test_text_of_special_tokens_is_split_where_the_configuration_says_so(tmp_path: Path) -> None:
    assert len(load(tmp_path).encode("<bos>")) == 1
    assert len(load(tmp_path, split_special_tokens=True).encode("<bos>")) > 1


def test_what_the_post_processor_adds_stands_around_a_completion(tmp_path: Path) -> None:
    library = small(pre_tokenizer=BYTES, added=SPECIAL)
    bos, eos = library.token_to_id("<bos>"), library.token_to_id("<eos>")
    assert bos is not None
    assert eos is not None
    library.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos> <eos>", special_tokens=[("<bos>", bos), ("<eos>", eos)]
    )
    tokenizer = Tokenizer.load(save(library, tmp_path))
    assert tokenizer.completion_prefix.tolist() == [bos]
    assert tokenizer.completion_suffix.tolist() == [eos, eos]
    for text in ("", "a", "The fox <bos> jumps", "<eos>"):
        whole = [*tokenizer.completion_prefix, *tokenizer.encode(text), *tokenizer.completion_suffix]
        assert whole == library.encode(text).ids


def test_ids_are_not_changed_by_how_many_texts_go_into_a_call(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    parts = ["The fox", "", "<bos>", "日本語"]
    assert tokenizer.encode_batch(parts) == [tokenizer.encode(text).tolist() for text in parts]
    assert tokenizer.encode("").tolist() == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "There is no"),
        ("{", "not JSON"),
        ("[1]", "shape"),
        ('{"normalizer": 3}', "shape"),
        ('{"model": {"type": "Nonesuch"}}', "not usable"),
        ("{}", "not usable"),
    ],
)
def test_unusable_tokenizer_is_refused_by_name(tmp_path: Path, content: str | None, says: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=says) as caught:
        Tokenizer.load(tmp_path)
    assert str(tmp_path / "tokenizer.json") in str(caught.value)


def test_broken_configuration_is_refused_by_name(tmp_path: Path) -> None:
    save(small(pre_tokenizer=BYTES), tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{]")
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json is not JSON"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": 5}')
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json .*shape.*chat_template"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(TokenizerError, match="not UTF-8"):
        Tokenizer.load(tmp_path)


def test_half_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="surrogate"):
        load(tmp_path).encode("a\ud800b")


def test_text_that_the_library_gives_up_on_is_refused_and_the_next_is_not(tmp_path: Path) -> None:
    slow = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    tokenizer = Tokenizer.load(save(small(pre_tokenizer=slow), tmp_path))
    with pytest.raises(TokenizerError, match="gave up"):
        tokenizer.encode("a" * 40 + "b")
    assert len(tokenizer.encode("aaa"))
