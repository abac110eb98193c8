"""Validates a translation model during training."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from keras_transformer.data.batch_plan import Batch
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.evaluation.scores import bleu
from keras_transformer.runs.run import Run
from keras_transformer.training.fit_loop import evaluation_of
from keras_transformer.translation.translator import Translator
from keras_transformer.visualization.attention import translation_attention
from keras_transformer.visualization.attention_pages import attention_image

_SAMPLES = 5
_MOST_TOKENS = 50  # An image of 6 layers and 8 heads then has 23 MB before compression.


class TranslationValidation:
    """Validates the model of a `SlicedLogitsTrainer` on the validation split of a run.

    Pass an instance to `fit` as the argument `validation`. `batches` is the result of
    `evaluation_batches`. The results are loss (without label smoothing), perplexity and accuracy
    over real target tokens. Greedy search also translates the first sentences of the split. The
    setting `training.validation_bleu_sentences` is the number of these sentences. If this number is
    above 0, the results also contain `"bleu"`, in percent, `"translations"`, a Markdown table with
    a few examples, and the attention of the first pair of at most 50 tokens a side: an image of all
    heads for each kind, such as `"attention/cross"`, and the tokens of its rows and columns as
    `"attention/tokens"`. There is no attention without such a pair or if the model has none.
    """

    def __init__(self, run: Run, tokenizer: Any, batches: Sequence[Batch]) -> None:
        self.tokenizer = tokenizer
        self.settings = run.recipe.evaluation
        count = run.recipe.training.validation_bleu_sentences
        self.pairs = list(itertools.islice(run.text.pairs("validation"), count))
        if self.pairs:
            bleu(["a"], ["a"], self.settings)  # raises `UserError` if its tokenizer is missing
        self._evaluate = evaluation_of(batches)
        self._translator: Translator | None = None

    def __call__(self, trainer: Any, step: int) -> dict[str, Any]:
        found = self._evaluate(trainer, step)
        loss = float(trainer.perplexity.crossentropy())
        return {**found, "loss": loss, **self._translations(trainer.model)}

    def _translations(self, model: Any) -> dict[str, Any]:
        if not self.pairs:
            return {}
        if self._translator is None:
            self._translator = Translator(model, self.tokenizer, SearchOptions(beam_size=1))
        sources, references = (list(side) for side in zip(*self.pairs, strict=True))
        translations = self._translator.translate(sources)
        score = bleu(translations, references, self.settings)
        rows = list(zip(sources, references, translations, strict=True))[:_SAMPLES]
        table = _table(("source", "reference", "translation"), rows)
        return {"bleu": score, "translations": table, **self._attention()}

    def _length(self, pair: tuple[str, str]) -> int:
        encoders = self.tokenizer.encode_source, self.tokenizer.encode_target
        return max(len(encode([x])[0]) for encode, x in zip(encoders, pair, strict=True))

    def _attention(self) -> dict[str, Any]:
        """Draws the attention of the first pair that makes a picture of a modest size."""
        pairs = (pair for pair in self.pairs if self._length(pair) <= _MOST_TOKENS)
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
