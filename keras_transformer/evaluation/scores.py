"""Computes BLEU and chrF of a run with sacrebleu."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sacrebleu.metrics import BLEU, CHRF

from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.recipe import Evaluation
from keras_transformer.run import Checkpoint, Engine, Run, Split, checkpoint_step


@dataclass(frozen=True)
class Score:
    """A metric, its value in percent, and its settings as a sacrebleu signature."""

    metric: str
    score: float
    signature: str


def evaluate_run(
    run: Run,
    split: Split = "test",
    options: SearchOptions | None = None,
    engine: Engine = "keras",
    use_shortlist: bool = False,
    checkpoint: Checkpoint | None = None,
    tokens_per_batch: int | None = None,
) -> list[Score]:
    """Translates a split, scores the translations, and appends the scores to `scores.json`.

    Args:
        run: A run that has a model, or a checkpoint.
        split: "test" or "validation".
        options: The search options. Defaults to None, which means the search options of the recipe.
        engine: `"keras"` or `"ctranslate2"`, see `Run.translator`. Defaults to `"keras"`.
        use_shortlist: Whether to translate with the run's shortlist. Defaults to False.
        checkpoint: The checkpoint to score, see `Run.model`. Defaults to None, which means the
            finished model.
        tokens_per_batch: See `Run.translator`. Defaults to None.

    Returns:
        BLEU and chrF in percent. If the recipe generates its text (`data.generator`), also the
        percentage of translations that equal their references.

    Raises:
        UserError: If the text is missing or empty, if `scores.json` is damaged or cannot be
            written, or if a length in `options` exceeds the model's maximum. The error is raised
            before the translation.
    """
    settings = run.recipe.evaluation
    options = options or settings.search_options()
    run.check_scores()
    pairs = list(run.pairs(split))
    if not pairs:
        raise UserError(f"the {split} text of {run.directory} is empty")
    sources, references = zip(*pairs, strict=True)
    folder = None if checkpoint is None else run.checkpoint(checkpoint)
    step = None if folder is None else checkpoint_step(folder)
    shared: dict[str, Any] = {"options": options, "use_shortlist": use_shortlist}
    try:
        translator = run.translator(
            engine=engine, checkpoint=step, tokens_per_batch=tokens_per_batch, **shared
        )
    except ValueError as error:
        raise UserError(str(error)) from None
    scored = run.scored_model(folder)  # A training in another process may remove the checkpoint.
    scores = score(translator.translate(list(sources), progress=True), references, settings)
    if run.recipe.data.generator is None:
        scores = [entry for entry in scores if entry.metric != "exact match"]
    for entry in scores:
        run.add_score(split=split, scored=scored, **shared, **asdict(entry))
    return scores


def score(
    translations: Sequence[str], references: Sequence[str], settings: Evaluation
) -> list[Score]:
    """Computes BLEU, chrF and the percentage of exact matches, with one reference per translation.

    `settings` specifies the tokenization and case sensitivity of BLEU.
    """
    scores = []
    for metric in (BLEU(tokenize=settings.tokenize, lowercase=settings.lowercase), CHRF()):
        result = metric.corpus_score(translations, [references])
        scores.append(Score(result.name, result.score, str(metric.get_signature())))
    hits = sum(a == b for a, b in zip(translations, references, strict=True))
    scores.append(Score("exact match", 100 * hits / len(references), f"n:{len(references)}"))
    return scores
