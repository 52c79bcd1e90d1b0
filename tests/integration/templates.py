"""Chat templates and tokenizers that the front door of a test knows."""

from pathlib import Path

from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from tests.doubles.engine import tokens
from tests.tokenizers import save, small

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def known_template(directory: Path, template: str) -> dict[str, str]:
    where = directory / "tokenizer"
    where.mkdir()
    made = small(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False))
    return {"tokenizer": str(save(made, where, chat_template=template))}


def known_tokens(directory: Path) -> dict[str, str]:
    """Those of the engine's double."""
    where = directory / "tokenizer"
    where.mkdir()
    made = Library(models.WordLevel({**tokens.vocabulary(), "<unk>": 0}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(tokens.PIECES.pattern), "isolated")
    made.decoder = decoders.Fuse()
    return {"tokenizer": str(save(made, where))}
