"""Translations of validation sentences, to watch a model learn."""

import itertools
from typing import Any

from keras_transformer.data import read_parallel
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.decoding.translator import Translator
from keras_transformer.evaluation.scores import score
from keras_transformer.run import Run
from keras_transformer.training.tensorboard import TensorBoardWriter

_SAMPLES = 5


class ValidationTranslations:
    """Greedy translations of the first validation sentences: their BLEU, and some as text.

    Args:
        model: The model in training.
        tokenizer: Its tokenizer.
        run: The run, whose recipe says how many sentences, and how BLEU is computed.
        writer: Gets a few translations beside their references.

    Call arguments:
        step: Integer, optimizer steps made.

    Returns:
        `{"bleu": ...}`, in percent.
    """

    def __init__(self, model: Any, tokenizer: Any, run: Run, writer: TensorBoardWriter) -> None:
        count = run.recipe.training.validation_bleu_sentences
        pairs = itertools.islice(read_parallel(*run.text("validation")), count)
        self.sources, self.references = (list(side) for side in zip(*pairs, strict=True))
        self.settings = run.recipe.evaluation
        self.writer = writer
        self._translator = Translator(model, tokenizer, SearchOptions(beam_size=1))

    def __call__(self, step: int) -> dict[str, float]:
        translations = self._translator.translate(self.sources)
        self.writer.report_text(step, "validation/translations", self._table(translations))
        bleu = score(translations, self.references, self.settings)[0]
        return {"bleu": bleu.score}

    def _table(self, translations: list[str]) -> str:
        rows = list(zip(self.sources, self.references, translations, strict=True))[:_SAMPLES]
        lines = ["| source | reference | translation |", "|---|---|---|"]
        cells = ([text.replace("|", r"\|") for text in row] for row in rows)
        return "\n".join(lines + [f"| {' | '.join(row)} |" for row in cells])
