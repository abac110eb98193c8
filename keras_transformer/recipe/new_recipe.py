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

from keras_transformer.data.corpus import Pair
from keras_transformer.data.corpus_report import MAX_LENGTH_RATIO, CorpusReport
from keras_transformer.data.tokenizer import Tokenizer, VocabularySizeError
from keras_transformer.errors import UserError
from keras_transformer.recipe.settings import Recipe, bleu_tokenization

_FEWEST_PAIRS = 200
_CHECKPOINTS = 20
# Fine-tuning takes this part of the steps, and another learning rate.
_FINE_TUNING_PART, _FINE_TUNING_RATE = 5, 0.0001
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

    def to_yaml(self, name: str, text: Text) -> str:
        """Returns the recipe as YAML with comments."""
        scale, every = self.scale, self.steps // _CHECKPOINTS
        model = "\n".join(f"  {key}: {value}" for key, value in scale.model.items())
        tokenize = bleu_tokenization(text.target_language)
        return f"""\
{self._data_section(name, text)}\
tokenizer:
  # Little text needs a small vocabulary, so that each piece occurs often (Sennrich and Zhang 2019).
  vocabulary_size: {self.vocabulary_size}
  # Variants of a character, such as full-width letters, become one in source text.
  normalization: {_NORMALIZATION["normalization"]}
  # A translation can't have a character that this normalization replaces: identity replaces none.
  # {self.round_trip}
  target_normalization: {_NORMALIZATION["target_normalization"]}
model:
{model}
  # Layer norm before each sublayer. Training is stable with small batches and short warm-up.
  norm_first: true
  # The less text, the more dropout. If the validation loss soon rises again, try more.
  dropout_rate: {scale.dropout_rate}
training:
  # At most {self.passes:.0f} passes over about {self.tokens:,} target tokens.
  steps: {self.steps}
  # Stop after this many checkpoints without a lower validation loss.
  early_stopping_patience: 5
  # Small batches suit little text (Atrio and Popescu-Belis 2022). `keras-transformer budget` finds
  # the largest number that fits into memory.
  tokens_per_batch: {scale.tokens_per_batch}
  accumulation_steps: {scale.accumulation_steps}
  length_multiple: 4
  warmup_steps: {scale.warmup_steps}
  peak_learning_rate: {scale.peak_learning_rate}
  # On GPUs, and on CPUs that compute in bfloat16, mixed_bfloat16 is faster.
  dtype_policy: float32
  checkpoint_every: {every}
  keep_checkpoints: 8
evaluation:
  average_last: {scale.average_last}
  beam_size: 5
  length_penalty: 1.5
  tokenize: {_quoted(tokenize)}
"""

    def to_fine_tuning_yaml(self, name: str, text: Text, run: str, initial: Recipe) -> str:
        """Returns a recipe that trains on from a run of the recipe `initial`, as YAML."""
        evaluation = {
            "average_last": self.scale.average_last,
            **initial.evaluation.search_options().model_dump(mode="json", exclude_defaults=True),
            "tokenize": bleu_tokenization(text.target_language),
        }
        model = initial.model.model_dump(mode="json", exclude_none=True)
        return f"""\
{self._data_section(name, text)}\
model:
  # As in the initial run. Only dropout rates and max_length may differ.
{_indented(model)}
training:
  # The run whose tokenizer and weights this one starts with.
  initial_run: {_quoted(run)}
  # At most {self.passes:.0f} passes over about {self.tokens:,} target tokens.
  steps: {self.steps}
  # Stop after this many checkpoints without a lower validation loss.
  early_stopping_patience: 5
  tokens_per_batch: {self.scale.tokens_per_batch}
  accumulation_steps: {self.scale.accumulation_steps}
  length_multiple: 4
  warmup_steps: {self.steps // 10}
  # Low, so that the model keeps what it knows. Try others between 0.00003 and 0.0005.
  peak_learning_rate: {_FINE_TUNING_RATE}
  # On GPUs, and on CPUs that compute in bfloat16, mixed_bfloat16 is faster.
  dtype_policy: float32
  checkpoint_every: {self.steps // _CHECKPOINTS}
  keep_checkpoints: 8
evaluation:
{_indented(evaluation)}
"""

    def _data_section(self, name: str, text: Text) -> str:
        paths = [path.resolve() for path in (text.source, text.target) if path is not None]
        folder = os.path.commonpath([path.parent for path in paths])
        named = zip(("source", "target"), paths, strict=False)
        files = ", ".join(f"{key}: {_quoted(os.path.relpath(x, folder))}" for key, x in named)
        return f"""\
# Written by `keras-transformer init`. `keras-transformer schema` lists all keys.
name: {_quoted(name)}
seed: 1
data:
  source_language: {_quoted(text.source_language)}
  target_language: {_quoted(text.target_language)}
  # The folder of the text. `keras-transformer train --data-dir FOLDER` replaces it.
  directory: {_quoted(folder)}
  train: {{{files}}}
  # Random pairs for validation and test. No sentence is in two splits.
  held_out: {{validation: {self.held_out}, test: {self.held_out}}}
  # Pairs that are probably no translations are dropped. The last filter needs py3langid.
  filters: {{max_length_ratio: {MAX_LENGTH_RATIO}, identical: true, repeated: true, \
wrong_language: {str(self.wrong_language).lower()}}}
  # Pairs with a sentence of more pieces (subwords) are dropped.
  max_length: {self.max_length}
"""


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
    changed = [(x, y) for x, y in zip(sentences, found, strict=True) if x != y]
    same, count = len(sentences) - len(changed), len(sentences)
    text = f"{same:,} of {count:,} target sentences ({same / count:.2%}) come back unchanged"
    if spaces := sum([*filter(None, x.split(" "))] == y.split(" ") for x, y in changed):
        text += f"; {spaces:,} lose only repeated or outer spaces, which BLEU ignores"
    if others := len(changed) - spaces:
        lost = sorted(set[str]().union(*({*x} - {*y} for x, y in changed)) - {" "})
        names = ", ".join(f"U+{ord(character):04X}" for character in lost[:9])
        text += f"; {others:,} lose other characters: remove {names} from the text"
    return text


def _indented(tree: dict[str, Any]) -> str:
    text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True).rstrip("\n")
    return textwrap.indent(text, "  ")


def _quoted(text: str) -> str:
    """Returns a string as YAML. Without quotes, YAML reads `no` as a truth value."""
    return yaml.safe_dump(text, default_style='"', allow_unicode=True, width=math.inf).strip()
