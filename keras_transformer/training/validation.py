"""Validates a translation model during training."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from keras_transformer.data.batch_plan import Batch
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.decoding.translator import Translator
from keras_transformer.evaluation.scores import score
from keras_transformer.run import Run
from keras_transformer.training.fit import evaluation_of

_SAMPLES = 5


class TranslationValidation:
    """Validates the model of a `SlicedLogitsTrainer` on the validation split of a run.

    Pass an instance to `fit` as the argument `validation`. `batches` is the result of
    `evaluation_batches`. The results are loss (without label smoothing), perplexity and accuracy
    over real target tokens. Greedy search also translates the first sentences of the split. The
    setting `training.validation_bleu_sentences` is the number of these sentences. If this number is
    above 0, the results also contain `"bleu"`, in percent, and `"translations"`, a Markdown table
    with a few examples.
    """

    def __init__(self, run: Run, tokenizer: Any, batches: Sequence[Batch]) -> None:
        self.tokenizer = tokenizer
        self.settings = run.recipe.evaluation
        count = run.recipe.training.validation_bleu_sentences
        self.pairs = list(itertools.islice(run.pairs("validation"), count))
        self._evaluate = evaluation_of(batches)
        self._translator: Translator | None = None

    def __call__(self, trainer: Any, step: int) -> dict[str, Any]:
        found = self._evaluate(trainer, step)
        return {**found, "loss": math.log(found["perplexity"]), **self._translations(trainer.model)}

    def _translations(self, model: Any) -> dict[str, Any]:
        if not self.pairs:
            return {}
        if self._translator is None:
            self._translator = Translator(model, self.tokenizer, SearchOptions(beam_size=1))
        sources, references = (list(side) for side in zip(*self.pairs, strict=True))
        translations = self._translator.translate(sources)
        bleu = score(translations, references, self.settings)[0]
        rows = list(zip(sources, references, translations, strict=True))[:_SAMPLES]
        cells = ([text.replace("|", r"\|") for text in row] for row in rows)
        lines = ["| source | reference | translation |", "|---|---|---|"]
        table = "\n".join(lines + [f"| {' | '.join(row)} |" for row in cells])
        return {"bleu": bleu.score, "translations": table}
