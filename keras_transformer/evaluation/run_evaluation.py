"""Scores the translations of runs, and keeps scores and translations in the run folder."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer._files import as_line, output_file
from keras_transformer.data.text_files import read_lines
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.evaluation.evaluator import Evaluator, MetricName, Score
from keras_transformer.formats.engines import open_translator
from keras_transformer.runs.checkpoints import checkpoint_step
from keras_transformer.runs.run import Checkpoint, Run, opened_runs
from keras_transformer.runs.text import Split


class Evaluated(NamedTuple):
    """The translations of a run, their scores, and the entries of the scores in `scores.json`."""

    hypotheses: list[str]
    scores: list[Score]
    entries: list[dict[str, Any]]


def default_metrics(run: Run | None = None) -> tuple[MetricName, ...]:
    """Returns the metrics for the text of a run, or for other text."""
    is_generated = run is not None and run.recipe.data.generator is not None
    return ("bleu", "chrf", "exact-match") if is_generated else ("bleu", "chrf")


def run_evaluator(
    run: Run,
    split: Split = "test",
    files: tuple[Path, Path] | None = None,
    metrics: Sequence[MetricName] | None = None,
    **settings: Any,
) -> Evaluator:
    """Returns an `Evaluator` of a split of the run's text, or of other files.

    Args:
        run: The run.
        split: "test" or "validation". Ignored if `files` is given.
        files: A source file and a reference file. Defaults to None.
        metrics: The metrics. Defaults to None, which means BLEU and chrF and, if the recipe
            generates its text (`data.generator`), the percentage of exact matches.
        **settings: Other arguments of `Evaluator`. The defaults of `tokenize` and `lowercase` come
            from the recipe.

    Raises:
        UserError: If the text is missing, empty or not aligned, or if a metric lacks a package.
    """
    metrics = metrics or default_metrics(run)
    settings = {"metrics": metrics, **run.recipe.bleu_settings, **settings}
    if files is not None:
        return Evaluator.from_files(*reversed(files), **settings)
    pairs = list(run.text.pairs(split, tagged=False))
    return Evaluator([y for _, y in pairs], [x for x, _ in pairs], **settings)


def evaluate_run(
    run: Run,
    evaluator: Evaluator | None = None,
    *,
    split: Split = "test",
    files: tuple[Path, Path] | None = None,
    options: SearchOptions | None = None,
    checkpoint: Checkpoint | None = None,
    output: Path | None = None,
    **settings: Any,
) -> Evaluated:
    """Translates a text, scores the translations, and appends the scores to `scores.json`.

    Before the translation, raises `UserError` if the text is missing or empty, a file is damaged or
    cannot be written, or a length in `options` exceeds the model's maximum.

    Args:
        run: A run that has a model, or a checkpoint.
        evaluator: What `run_evaluator` returned for `split` and `files`. Defaults to None, which
            means the default metrics.
        split: As in `run_evaluator`.
        files: As in `run_evaluator`.
        options: As in `open_translator`.
        checkpoint: As in `open_translator`.
        output: File for the translations. Defaults to None: the translations of a split are written
            to `hypotheses/` in the run folder, and those of `files` are not kept.
        **settings: Other arguments of `open_translator`.
    """
    run.scores.entries()  # raises an error if the file is damaged
    run.writing()  # raises an error if the folder is read-only
    options = options or run.recipe.evaluation.search_options()
    evaluator = evaluator or run_evaluator(run, split, files)
    sources = list(evaluator.sources or ())
    inputs = sources if files else [source for source, _ in run.text.pairs(split)]
    folder = None if checkpoint is None else run.checkpoint(checkpoint)
    step = None if folder is None else checkpoint_step(folder)
    try:
        # The scores are those of the model alone.
        translator = open_translator(run, options, checkpoint=step, as_written=True, **settings)
    except ValueError as error:
        raise UserError(str(error)) from None
    scored = run.scores.scored_model(folder)  # before a training removes or replaces it
    with output_file(output) if output else nullcontext() as file:
        hypotheses = [as_line(text) for text in translator.translate(inputs, progress=True)]
        if file is not None:
            file.writelines(f"{line}\n" for line in hypotheses)
        if files is None:
            run.scores.keep_hypotheses(split, sources, hypotheses, scored)
    scores = evaluator.scores(hypotheses)
    made_with = {"options": options, "use_shortlist": settings.get("use_shortlist", False)}
    made_with |= {"split": split, "files": files, "scored": scored}
    entries = [run.scores.add(**made_with, **asdict(score)) for score in scores]
    return Evaluated(hypotheses, scores, entries)


def read_translations(path: Path, evaluator: Evaluator, split: Split) -> Sequence[str]:
    """Returns the translations in a file, or those that `evaluate_run` kept in a run folder.

    `path` is a file with one translation per line, or a run as in `Run.open`. `split` is the split
    of the run. Raises `UserError` for translations of another text than that of `evaluator`.
    """
    if path.is_file():
        lines = list(read_lines(path))
    else:
        (run,) = opened_runs(path)
        run.model_place()  # raises an error without a model
        sources = [source for source, _ in run.text.pairs(split, tagged=False)]
        if sources != list(evaluator.sources or ()):
            raise UserError(
                f"{path} has another {split} text. Translate the text that is evaluated with "
                f"{path}, and give the file of translations in place of {path}"
            )
        lines = run.scores.hypotheses(split)
    evaluator.check_aligned(str(path), lines)
    return lines


def bleu(translations: Sequence[str], references: Sequence[str], **settings: Any) -> float:
    """Computes BLEU. `settings` are the arguments `tokenize` and `lowercase` of `Evaluator`."""
    return Evaluator(references, metrics=["bleu"], **settings).scores(translations)[0].score
