"""Scores the translations of runs, and keeps scores and translations in the run folder."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer._files import as_line, output_file
from keras_transformer.data.corpus import read_lines
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.evaluation import MetricName
from keras_transformer.evaluation.evaluator import Evaluator, Score
from keras_transformer.recipe.settings import Evaluation
from keras_transformer.runs.checkpoints import checkpoint_step
from keras_transformer.runs.run import Checkpoint, Engine, Run
from keras_transformer.runs.text import Split
from keras_transformer.translation.open_run import open_translator

_ALL_OF_GENERATED_TEXT: tuple[MetricName, ...] = ("bleu", "chrf", "exact-match")


class Evaluated(NamedTuple):
    """The translations of a run and their scores."""

    hypotheses: list[str]
    scores: list[Score]


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
        UserError: If the text is missing, empty or not aligned, or if a package that a metric needs
            is missing.
    """
    recipe = run.recipe
    if metrics is None:
        metrics = ["bleu", "chrf"] if recipe.data.generator is None else _ALL_OF_GENERATED_TEXT
    of_recipe = {x: getattr(recipe.evaluation, x) for x in ("tokenize", "lowercase")}
    settings = {"metrics": metrics, **of_recipe, **settings}
    if files is not None:
        return Evaluator.from_files(*reversed(files), **settings)
    pairs = list(run.text.pairs(split))
    if not pairs:
        raise UserError(f"the {split} text of {run.directory} is empty")
    sources, references = zip(*pairs, strict=True)
    return Evaluator(references, sources, **settings)


def evaluate_run(
    run: Run,
    evaluator: Evaluator | None = None,
    *,
    split: Split = "test",
    files: tuple[Path, Path] | None = None,
    options: SearchOptions | None = None,
    engine: Engine = "keras",
    use_shortlist: bool = False,
    checkpoint: Checkpoint | None = None,
    tokens_per_batch: int | None = None,
    output: Path | None = None,
) -> Evaluated:
    """Translates a text, scores the translations, and appends the scores to `scores.json`.

    Args:
        run: A run that has a model, or a checkpoint.
        evaluator: What `run_evaluator` returned for `split` and `files`. Defaults to None, which
            means the default metrics.
        split: As in `run_evaluator`.
        files: As in `run_evaluator`.
        options: As in `open_translator`.
        engine: As in `open_translator`.
        use_shortlist: As in `open_translator`.
        checkpoint: As in `open_translator`.
        tokens_per_batch: As in `open_translator`.
        output: File for the translations. Defaults to None: the translations of a split are written
            to `hypotheses/` in the run folder, and those of `files` are not kept.

    Raises:
        UserError: If the text is missing or empty, if a file is damaged or cannot be written, or if
            a length in `options` exceeds the model's maximum. The error is raised before the
            translation.
    """
    run.scores.check()
    options = options or run.recipe.evaluation.search_options()
    evaluator = evaluator or run_evaluator(run, split, files)
    sources = list(evaluator.sources or ())
    if not sources or (files is None and sources != [x for x, _ in run.text.pairs(split)]):
        raise ValueError(
            f"`evaluator` must have the sources of the text. Received: split={split!r}"
        )
    folder = None if checkpoint is None else run.checkpoint(checkpoint)
    step = None if folder is None else checkpoint_step(folder)
    made_with: dict[str, Any] = {"options": options, "use_shortlist": use_shortlist}
    try:
        translator = open_translator(
            run, engine=engine, checkpoint=step, tokens_per_batch=tokens_per_batch, **made_with
        )
    except ValueError as error:
        raise UserError(str(error)) from None
    scored = run.scores.scored_model(folder)  # before a training removes or replaces it
    with output_file(output) if output else nullcontext() as file:
        hypotheses = [as_line(text) for text in translator.translate(sources, progress=True)]
        if file is not None:
            file.writelines(f"{line}\n" for line in hypotheses)
        if files is None:
            run.scores.keep_hypotheses(split, sources, hypotheses, scored, folder)
    scores = evaluator.scores(hypotheses)
    for entry in scores:
        run.scores.add(split=split, files=files, scored=scored, **made_with, **asdict(entry))
    return Evaluated(hypotheses, scores)


def read_baseline(path: Path, evaluator: Evaluator, split: Split | None) -> Sequence[str]:
    """Returns the translations in a file, or those that `evaluate_run` kept in a run folder.

    `path` is a file with one translation per line, or a run as in `Run.open`. `split` is the split
    of the text of `evaluator`, or None if the text is not a split of a run.

    Raises:
        UserError: If the translations are missing, or are translations of another text.
    """
    if path.exists() and not path.is_dir():
        lines = list(read_lines(path))
    elif split is None:
        raise UserError(
            "the baseline of a text that is not a split of a run must be a file of translations. "
            f"Received: {path}"
        )
    else:
        run = Run.open(path)
        if [source for source, _ in run.text.pairs(split)] != list(evaluator.sources or ()):
            raise UserError(
                f"{path} has another {split} text than the evaluated run, so their scores can't be "
                f"compared. Translate the text of the evaluated run with {path}, and give the "
                "translations as --baseline"
            )
        lines = run.scores.hypotheses(split)
    evaluator.check_aligned(str(path), lines)
    return lines


def bleu(translations: Sequence[str], references: Sequence[str], settings: Evaluation) -> float:
    """Computes BLEU, with the tokenization and case sensitivity of `settings`."""
    tokenize, lowercase = settings.tokenize, settings.lowercase
    evaluator = Evaluator(references, metrics=["bleu"], tokenize=tokenize, lowercase=lowercase)
    return evaluator.scores(translations)[0].score
