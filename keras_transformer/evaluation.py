"""Scores of a run, by sacrebleu."""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics import BLEU, CHRF

from keras_transformer.decoding import Translator
from keras_transformer.recipe import Evaluation
from keras_transformer.run import Run, Split


@dataclass(frozen=True)
class Score:
    """One figure: the metric's name, its value in percent, and sacrebleu's signature of it."""

    metric: str
    score: float
    signature: str


def evaluate_run(
    run: Run,
    split: Split = "test",
    beam_size: int | None = None,
    length_penalty: float | None = None,
) -> list[Score]:
    """Translate a split of the run's recipe, score it, and append the scores to the run.

    Args:
        run: a run that has a model.
        split: "test" or "validation".
        beam_size: beams per sentence. Default: the recipe's.
        length_penalty: alpha of ((5 + n) / 6) ** alpha. Default: the recipe's.

    Returns:
        BLEU and chrF; on generated pairs also the share of exact matches. All in percent.
    """
    settings = run.recipe.evaluation
    beam_size = settings.beam_size if beam_size is None else beam_size
    length_penalty = settings.length_penalty if length_penalty is None else length_penalty
    sources, references = zip(*run.pairs(split), strict=True)
    translator = Translator(
        run.model(), run.tokenizer(), beam_size=beam_size, length_penalty=length_penalty
    )
    scores = score(translator.translate(list(sources), progress=True), references, settings)
    if run.recipe.data.generator is None:
        scores = [entry for entry in scores if entry.metric != "exact match"]
    for entry in scores:
        run.add_score(
            split=split,
            metric=entry.metric,
            score=entry.score,
            signature=entry.signature,
            beam_size=beam_size,
            length_penalty=length_penalty,
        )
    return scores


def score(
    translations: Sequence[str], references: Sequence[str], settings: Evaluation
) -> list[Score]:
    """Compare translations with one reference each.

    Args:
        translations: one string a sentence.
        references: as many strings, in the same order.
        settings: tokenization and case of BLEU.

    Returns:
        BLEU, chrF and exact match, in percent.
    """
    scores = []
    for metric in (BLEU(tokenize=settings.tokenize, lowercase=settings.lowercase), CHRF()):
        result = metric.corpus_score(translations, [references])
        scores.append(Score(result.name, result.score, str(metric.get_signature())))
    hits = sum(a == b for a, b in zip(translations, references, strict=True))
    scores.append(Score("exact match", 100 * hits / len(references), f"n:{len(references)}"))
    return scores
