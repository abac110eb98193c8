"""Chooses the settings of a recipe by the size of a corpus, and writes the recipe.

Small corpora get a small model, a small vocabulary, small batches and more dropout. Sources:
Sennrich and Zhang 2019 (https://arxiv.org/abs/1905.11901), Araabi and Monz 2020
(https://arxiv.org/abs/2011.02266), Atrio and Popescu-Belis 2022 (https://arxiv.org/abs/2203.10579).
The numbers between are those of the package's recipes.
"""

import math
import os
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from keras_transformer.data.corpus_report import MAX_LENGTH_RATIO, CorpusReport
from keras_transformer.data.languages import bleu_tokenization
from keras_transformer.data.text_files import Pair
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.tokenizer_training import VocabularySizeError
from keras_transformer.errors import UserError
from keras_transformer.recipe.settings import Recipe

_FEWEST_PAIRS = 200
_CHECKPOINTS = 20
# Fine-tuning takes this part of the steps.
_FINE_TUNING_PART = 5
# Of source text, the model needs only the ids. Target text must come back from them as it was.
_NORMALIZATION: dict[str, Any] = {"normalization": "nmt_nfkc", "target_normalization": "identity"}


class _Scale(NamedTuple):
    """Settings for corpora of at most `pairs` sentence pairs."""

    pairs: float
    model: dict[str, int | str]
    dropout_rate: float
    vocabulary_size: int
    tokens_per_batch: int
    accumulation_steps: int
    warmup_steps: int
    peak_learning_rate: float
    passes: int
    average_last: int

    @property
    def batch(self) -> int:
        return self.tokens_per_batch * self.accumulation_steps


# The model of recipes/tatoeba_en_de.yaml. Its short decoder makes translation fast.
_SMALL: dict[str, int | str] = dict(
    num_layers=4, num_decoder_layers=2, d_model=192, num_heads=6, d_ff=512
)
_WIDE: dict[str, int | str] = {"preset": "tiny", "d_model": 256, "d_ff": 1_024}
_SCALES = (
    _Scale(10_000, {"preset": "tiny"}, 0.3, 2_000, 1_024, 1, 400, 0.002, 200, 8),
    _Scale(60_000, {"preset": "tiny"}, 0.2, 8_000, 2_048, 1, 1_000, 0.003, 50, 8),
    _Scale(250_000, _SMALL, 0.1, 6_000, 4_096, 1, 800, 0.003, 30, 4),
    _Scale(600_000, _WIDE, 0.1, 8_000, 4_096, 1, 1_000, 0.002, 20, 4),
    _Scale(2_000_000, {"preset": "base"}, 0.1, 16_000, 4_096, 2, 4_000, 0.0007, 20, 4),
    _Scale(math.inf, {"preset": "base"}, 0.1, 32_000, 3_125, 8, 4_000, 0.0007, 20, 4),
)


class Text(NamedTuple):
    """The files and languages of a corpus. `target` is None for a file with both sides."""

    source: Path
    target: Path | None
    source_language: str
    target_language: str


@dataclass(frozen=True)
class NewRecipe:
    """The chosen settings."""

    scale: _Scale  # the settings that depend only on the number of pairs
    held_out: int  # pairs for validation, and for test
    vocabulary_size: int
    round_trip: str  # a sentence on the target sentences that their ids give back
    max_length: int  # pairs with a longer sentence, in pieces, are dropped
    too_long: int  # pairs that are longer, and
    tokens: int  # target tokens of the corpus, both estimated from the sample of the report
    wrong_language: bool  # whether training drops pairs with a sentence of another language
    steps: int

    @property
    def passes(self) -> float:
        """Number of times that training sees each pair, if it is not stopped early."""
        return self.steps * self.scale.batch / self.tokens

    def to_yaml(self, name: str, text: Text, initial: tuple[str, Recipe] | None = None) -> str:
        """Returns the recipe as YAML with comments.

        `initial` is the path of a run to fine-tune, and its recipe.
        """
        import jinja2

        environment = jinja2.Environment(loader=jinja2.PackageLoader(__package__))
        environment.trim_blocks = environment.lstrip_blocks = True
        environment.keep_trailing_newline = True
        environment.filters |= {"quoted": _quoted, "section": _section}
        paths = [path.resolve() for path in (text.source, text.target) if path is not None]
        folder = os.path.commonpath([path.parent for path in paths])
        names = (os.path.relpath(path, folder) for path in paths)
        model: dict[str, Any] = dict(self.scale.model)
        # A form that exports to Hugging Face have too.
        search: dict[str, Any] = {"beam_size": 5, "length_penalty": 1.0}
        search["length_penalty_form"] = "power"
        if initial:
            options = initial[1].evaluation.search_options()
            model = initial[1].model.model_dump(mode="json", exclude_none=True)
            search = options.model_dump(mode="json", exclude_defaults=True)
        tokenize = bleu_tokenization(text.target_language)
        return environment.get_template("recipe.yaml").render(
            name=name,
            text=text,
            recipe=self,
            scale=self.scale,
            model=model,
            initial_run=initial and initial[0],
            checkpoint_every=self.steps // _CHECKPOINTS,
            folder=folder,
            files=list(zip(("source", "target"), names, strict=False)),
            ratio=MAX_LENGTH_RATIO,
            normalization=_NORMALIZATION,
            evaluation={"average_last": self.scale.average_last, **search, "tokenize": tokenize},
        )


def choose_settings(report: CorpusReport, tokenizer: Tokenizer | None = None) -> NewRecipe:
    """Chooses the settings of a recipe for a corpus.

    `tokenizer` is that of a run to fine-tune, which takes fewer steps. By default, trains a
    tokenizer on the sample of the report, to count tokens and to make sure that the text allows the
    vocabulary size. A side needs 200 different sentences.
    """
    different = min(report.source.different, report.target.different)
    if different < _FEWEST_PAIRS:
        raise UserError(
            f"training needs at least {_FEWEST_PAIRS} pairs with different sentences. "
            f"Received: {report.pairs:,} pairs, {different:,} different sentences on a side"
        )
    scale = next(scale for scale in _SCALES if report.pairs <= scale.pairs)
    part = 1 if tokenizer is None else _FINE_TUNING_PART
    # If the sample is all of the text, a quarter may be held out.
    count = len(report.sample)
    pairs = report.sample[: count * 3 // 4 if report.pairs == count else count]
    tokenizer = tokenizer or _tokenizer(pairs, scale.vocabulary_size, report.characters)
    sources, targets = zip(*report.sample, strict=True)
    encoded = tokenizer.encode_source(sources), tokenizer.encode_target(targets)
    lengths = np.array([[*map(len, side)] for side in encoded])
    longest = np.quantile(lengths, 0.999)
    max_length = next((length for length in (32, 64, 128) if longest <= length), 256)
    tokens = round((lengths[1].mean() + 1) * report.pairs)
    steps, unit = scale.passes * tokens // scale.batch, 10 * _CHECKPOINTS
    return NewRecipe(
        scale=scale,
        held_out=min(max(50, different // 20), 2_000, different // 8),
        vocabulary_size=tokenizer.target_vocabulary_size,
        round_trip=_round_trip(tokenizer, [target for _, target in pairs]),
        max_length=max_length,
        too_long=round((lengths.max(axis=0) > max_length).mean() * report.pairs),
        tokens=tokens,
        steps=min(max(steps // unit * unit, 1_000), 100_000) // part,
        wrong_language=report.wrong_language is not None and not report.is_doubtful,
    )


def _tokenizer(pairs: list[Pair], size: int, characters: int) -> Tokenizer:
    """Trains a tokenizer with `size` pieces, more for many characters, fewer for little text."""
    try:
        return Tokenizer.train(pairs, max(size, 2 * characters), **_NORMALIZATION)
    except VocabularySizeError as error:
        size = max(error.bound * 4 // 5, min(error.bound, characters + 10))
        return Tokenizer.train(pairs, size, **_NORMALIZATION)


def _round_trip(tokenizer: Tokenizer, sentences: list[str]) -> str:
    """Says how many target sentences their pieces give back unchanged, and what others lose."""
    found = tokenizer.decode_target(tokenizer.encode_target(sentences))
    changed = [{*x} - {*y} for x, y in zip(sentences, found, strict=True) if x != y]
    count, same = len(sentences), len(sentences) - len(changed)
    text = f"{same:,} of {count:,} target sentences ({same / count:.2%}) come back unchanged"
    if characters := sorted(set[str]().union(*changed) - {" "}):
        names = ", ".join(f"U+{ord(x):04X}" for x in characters[:9])
        return f"{text}; others lose characters: remove {names} from the text"
    return text + "; others lose only repeated or outer spaces, which BLEU ignores" * (same < count)


def _section(tree: dict[str, Any]) -> str:
    """Returns the keys of a section as YAML."""
    text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True).rstrip("\n")
    return textwrap.indent(text, "  ")


def _quoted(text: str) -> str:
    """Returns a string as YAML. Without quotes, YAML reads `no` as a truth value."""
    return yaml.safe_dump(text, default_style='"', allow_unicode=True, width=math.inf).strip()
