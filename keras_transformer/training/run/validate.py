"""Validates a translation model or a language model in training."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from keras_transformer.data import Tokenizer
from keras_transformer.data.batch_plan import Batch
from keras_transformer.decoding.options import SamplingOptions, SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.evaluation.run_evaluation import bleu
from keras_transformer.recipe.settings import LANGUAGE_MODEL, TRANSLATION, Task
from keras_transformer.runs.run import Run
from keras_transformer.training.fit_loop import evaluation_of
from keras_transformer.training.sliced_logits_trainer import SlicedLogitsTrainer
from keras_transformer.translation.generator import Generator
from keras_transformer.translation.translator import Translator
from keras_transformer.visualization.attention import translation_attention
from keras_transformer.visualization.attention_pages import attention_image

# Examples of translations, and the most tokens of a sentence whose attention is drawn. With 6
# layers and 8 heads, the image then has 23 MB before compression.
_SAMPLES, _MOST_DRAWN = 5, 50
# Texts of a language model, the most tokens of each, and how they are drawn.
_TEXTS, _WRITTEN, _SAMPLING = 3, 200, SamplingOptions(temperature=0.8)


class TextValidation:
    """Validates the language model of a `SlicedLogitsTrainer` on the validation split of a run.

    As `TranslationValidation`, but the result `"samples"` has texts that the model writes without a
    prompt, always with the same random numbers.
    """

    def __init__(self, run: Run, tokenizer: Tokenizer, batches: Sequence[Batch]) -> None:
        self.tokenizer = tokenizer
        self._evaluate = evaluation_of(batches)
        self._generator: Generator | None = None

    def __call__(self, trainer: SlicedLogitsTrainer, step: int) -> dict[str, Any]:
        found = dict(self._evaluate(trainer, step))
        found["loss"] = float(trainer.perplexity.crossentropy())
        if self._generator is None:
            ids = {"bos_id": self.tokenizer.bos_id, "eos_id": self.tokenizer.eos_id}
            self._generator = Generator(trainer.model, self.tokenizer, **ids)
        length = min(_WRITTEN, trainer.model.max_length)
        texts = self._generator.write([""] * _TEXTS, length, _SAMPLING)
        blocks = ("\n".join(f"    {line}" for line in text.split("\n")) for text in texts)
        return {**found, "samples": "\n\n---\n\n".join(blocks)}


class TranslationValidation:
    """Validates the model of a `SlicedLogitsTrainer` on the validation split of a run.

    An instance is the argument `validation` of `fit`. The results are loss (without label
    smoothing), perplexity and accuracy over the real target tokens of `batches`. Greedy search also
    translates the first `training.validation_bleu_sentences` sentences of the split, if any. The
    results then also contain `"bleu"`, in percent, `"translations"`, a Markdown table with a few
    examples, and the attention of the first pair of at most 50 tokens a side, if the model has any:
    an image of all heads for each kind, such as `"attention/cross"`, and the tokens of its rows and
    columns as `"attention/tokens"`.
    """

    def __init__(self, run: Run, tokenizer: Tokenizer, batches: Sequence[Batch]) -> None:
        self.tokenizer = tokenizer
        self.bleu_settings = run.recipe.bleu_settings
        count = run.recipe.training.validation_bleu_sentences
        self.pairs = list(itertools.islice(run.text.pairs("validation"), count))
        if self.pairs:
            # Raises `UserError` if its tokenizer is missing.
            bleu(["a"], ["a"], **self.bleu_settings)
        self._evaluate = evaluation_of(batches)
        self._translator: Translator | None = None

    def __call__(self, trainer: SlicedLogitsTrainer, step: int) -> dict[str, Any]:
        found = dict(self._evaluate(trainer, step))
        found["loss"] = float(trainer.perplexity.crossentropy())
        if not self.pairs:
            return found
        if self._translator is None:
            self._translator = Translator(trainer.model, self.tokenizer, SearchOptions(beam_size=1))
        sources, references = (list(side) for side in zip(*self.pairs, strict=True))
        translations = self._translator.translate(sources)
        score = bleu(translations, references, **self.bleu_settings)
        rows = list(zip(sources, references, translations, strict=True))[:_SAMPLES]
        table = _table(("source", "reference", "translation"), rows)
        return {**found, "bleu": score, "translations": table, **self._attention()}

    def _attention(self) -> dict[str, Any]:
        """Draws the attention of the first pair that makes a picture of a modest size."""
        encode, encode_target = self.tokenizer.encode_source, self.tokenizer.encode_target
        pairs = (
            (source, target)
            for source, target in self.pairs
            if len(encode([source])[0]) <= _MOST_DRAWN >= len(encode_target([target])[0])
        )
        try:
            example = translation_attention(self._translator, *next(pairs))
        except (StopIteration, UserError):
            return {}
        tokens = [(kind, *map(" ".join, example.tokens[kind])) for kind in example.kinds]
        return {
            "attention/tokens": _table(("attention", "rows", "columns"), tokens),
            **{f"attention/{kind}": attention_image(example, kind) for kind in example.kinds},
        }


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table in Markdown, in which the texts are no Markdown."""
    special = str.maketrans({character: f"&#{ord(character)};" for character in r"\`*_|"})
    cells = ([text.translate(special) for text in row] for row in rows)
    lines = [heads, ["---"] * len(heads), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


VALIDATIONS: dict[Task, Any] = {TRANSLATION: TranslationValidation, LANGUAGE_MODEL: TextValidation}
