"""The commands `evaluate`, `evaluate-file`, `compare` and `score`."""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal, get_args

import click
from click.types import FuncParamType
from pydantic import Field, model_validator
from tabulate import tabulate

from keras_transformer._files import check_other_file, output_file
from keras_transformer.cli import parameters, terminal
from keras_transformer.cli.parameters import ExistingFile, Given, checked, existing_file
from keras_transformer.data.parallel_text import read_parallel
from keras_transformer.data.text_files import available_chunks
from keras_transformer.errors import UserError
from keras_transformer.evaluation.evaluator import (
    Evaluator,
    MetricName,
    Significance,
    SignificanceTest,
)
from keras_transformer.evaluation.metrics import is_worse
from keras_transformer.evaluation.run_evaluation import (
    default_metrics,
    evaluate_run,
    read_translations,
    run_evaluator,
)
from keras_transformer.runs.run import Run, opened_runs
from keras_transformer.translation.base_translator import STREAMED_LINES

# The exit status of a command whose limit is not met.
_FAILED = 3
_TEST_NAMES = {
    "bootstrap": "Paired bootstrap resampling",
    "randomization": "Paired approximate randomization",
}


def _limit(value: str) -> tuple[str, float]:
    name, _, number = value.lower().partition("=")
    name = {"chrf2": "chrf"}.get(name, name)
    with suppress(ValueError):
        if name in get_args(MetricName) and math.isfinite(limit := float(number)):
            return name, limit
    known = ", ".join(get_args(MetricName))
    raise click.BadParameter(f"{value!r} is not such as bleu=30. Metrics: {known}.")


class _MetricOptions(parameters.Options):
    metric: tuple[Literal["bleu", "chrf", "ter", "exact-match"], ...] = ()
    """Metric. Repeatable. Default: bleu and chrf, and exact-match for generated text."""
    comet_model: str | None = Field(None, title="NAME")
    """Compute COMET too, with this model: a checkpoint file, or a name such as
    Unbabel/wmt22-comet-da, which is downloaded."""
    tokenize: Literal["13a", "none", "intl", "char", "zh", "ja-mecab", "ko-mecab"] | None = None
    """Tokenization of BLEU, as in sacrebleu. Default: that of the recipe, or 13a without a run."""
    lowercase: bool = False
    """Ignore case in BLEU."""
    length_buckets: bool = False
    """Show scores by sentence length too."""
    fail_under: Annotated[tuple[tuple[MetricName, float], ...], FuncParamType(_limit)] = Field(
        (), title="METRIC=VALUE"
    )
    """Exit with status 3 if a score is worse, such as bleu=30: below it, or above it for ter.
    Repeatable. The metric is computed too."""
    json_: Path | None = None
    """File for all results as JSON."""

    def settings(self, of_run: Run | None = None) -> Given:
        """Returns arguments of `Evaluator`, or of `run_evaluator` for a run."""
        further = [name for name, _ in self.fail_under] + ["comet"] * bool(self.comet_model)
        metrics = [*(self.metric or default_metrics(of_run)), *further]
        settings = {"comet_model", "tokenize", "lowercase"}
        return {"metrics": metrics, **self.model_dump(include=settings, exclude_unset=True)}


class _TextOptions(_MetricOptions):
    split: Literal["test", "validation"] | None = None
    """Which split of the recipe's text. Default: test."""
    files: Annotated[tuple[Path, Path] | None, click.Tuple([existing_file, existing_file])] = Field(
        None, title="SOURCE REFERENCE"
    )
    """Files in place of a split: sentences and their reference translations, line by line."""

    @model_validator(mode="after")
    def _check(self) -> "_TextOptions":
        if self.split and self.files:
            raise ValueError("give either --split or --files")
        return self


class _EvaluateOptions(_TextOptions, parameters.TranslatorOptions):
    output: Path | None = None
    """File for the translations. Default: a file in RUN/hypotheses for a split, else none."""


class _CompareOptions(_TextOptions):
    significance: tuple[SignificanceTest, ...] = ("bootstrap",)
    """Significance test. Repeatable."""
    fail_if_worse: float | None = Field(None, gt=0, le=1, title="P")
    """Exit with status 3 if TRANSLATIONS are worse by a metric, with a p-value below this number,
    such as 0.05."""


class _EvaluateFileOptions(_MetricOptions):
    source: ExistingFile = None
    """File with the source sentences, for COMET and --length-buckets."""


@click.command("evaluate")
@parameters.run_argument
@parameters.options_of(_EvaluateOptions, "given")
@parameters.best_search_options
@parameters.backend_option
def evaluate_command(run: Path, given: _EvaluateOptions, search: Given) -> None:
    """Translate with RUN, and score the translations with sacrebleu: BLEU, chrF, TER, or COMET.

    The command translates a split of RUN's text, or --files. It appends the scores to
    RUN/scores.json, and writes the translations of a split to RUN/hypotheses.

    \b
    keras-transformer evaluate runs/quickstart
    keras-transformer evaluate runs/multi30k_en_de --split validation --beam-size 5
    keras-transformer evaluate runs/a --files in.txt reference.txt --metric ter
    keras-transformer evaluate runs/a --fail-under bleu=30 --fail-under chrf=55
    """
    check_other_file(given.output, *given.files or ())
    with _results_file(given.json_, given.output, *given.files or ()) as write:
        (opened,), split, files = opened_runs(run), given.split or "test", given.files
        options = checked(opened.recipe.evaluation.search_options, **search)
        evaluator = run_evaluator(opened, split, files, **given.settings(opened))
        text = files[0] if files else f"the {split} text {opened.text.files(split)[0]}"
        click.echo(f"Evaluating {text}: {len(evaluator.sources or ()):,} sentences", err=True)
        arguments = {**given.arguments(), "options": options, "output": given.output}
        found = evaluate_run(opened, evaluator, split=split, files=files, **arguments)
        facts = {"run": str(opened.directory), "search": options.model_dump()}
        report = _shown(evaluator, found.hypotheses, given) | {"scores": found.entries}
        write({**facts, **report})


@click.command("evaluate-file")
@click.argument("translations", type=parameters.existing_file)
@click.argument("reference", type=parameters.existing_file)
@parameters.options_of(_EvaluateFileOptions, "given")
def evaluate_file_command(translations: Path, reference: Path, given: _EvaluateFileOptions) -> None:
    """Score the file TRANSLATIONS, of a run or of another system, with sacrebleu.

    The file REFERENCE has the reference translations, line by line. The command needs no run.

    \b
    keras-transformer evaluate-file out.txt reference.txt
    keras-transformer evaluate-file out.txt reference.txt --metric ter --fail-under ter=60
    """
    with _results_file(given.json_, translations, reference, given.source) as write:
        evaluator = Evaluator.from_files(reference, given.source, **given.settings())
        lines = read_translations(translations, evaluator, "test")
        facts = {"translations": str(translations), "reference": str(reference)}
        write({**facts, **_shown(evaluator, lines, given)})


@click.command("compare")
@click.argument("translations", type=parameters.any_path)
@click.argument("baseline", type=parameters.any_path)
@parameters.options_of(_CompareOptions, "given")
def compare_command(translations: Path, baseline: Path, given: _CompareOptions) -> None:
    """Test whether TRANSLATIONS are better or worse than BASELINE.

    Each is a run whose split was evaluated before, or a file of translations. The text is that of
    the run. Two files need --files.

    \b
    keras-transformer compare runs/b runs/a
    keras-transformer compare runs/b runs/a --metric bleu --fail-if-worse 0.05
    keras-transformer compare b.txt a.txt --files source.txt reference.txt
    """
    sides, split = (translations, baseline), given.split or "test"
    with _results_file(given.json_, *sides, *given.files or ()) as write:
        if given.files:
            evaluator = Evaluator.from_files(*given.files[::-1], **given.settings())
        else:
            (run,) = opened_runs(baseline if translations.is_file() else translations)
            evaluator = run_evaluator(run, split, **given.settings(run))
        lines, other = (read_translations(path, evaluator, split) for path in sides)
        text = [*map(str, given.files)] if given.files else split
        facts = {"translations": str(translations), "baseline": str(baseline), "text": text}
        report = _shown(evaluator, lines, given)
        for test in given.significance:
            click.echo(f"Comparing with {baseline}: {test} test", err=True)
            found = evaluator.compare(lines, other, test)
            click.echo("\n" + comparison_table(found, str(baseline)))
            report["comparisons"] += map(asdict, found)
            report["failed"] += [
                f"{x.metric} is {x.score:.4f}, worse than the baseline's {x.baseline:.4f} "
                f"(p={x.p_value:.4f}, {test})"
                for name, x in zip(evaluator.metrics, found, strict=True)
                if is_worse(name, x.score, x.baseline) and x.p_value < (given.fail_if_worse or 0)
            ]
        write({**facts, **report})


@contextmanager
def _results_file(path: Path | None, *inputs: Path | None) -> Iterator[Callable[[Given], None]]:
    """Yields a function that writes results as JSON. Then exits if one of their limits failed."""
    check_other_file(path, *inputs, option="--json")
    failed: list[str] = []

    def write(results: Given) -> None:
        failed.extend(results["failed"])
        if file is not None:
            file.write(json.dumps(results, indent=2, ensure_ascii=False) + "\n")

    with output_file(path) if path else nullcontext() as file:
        yield write
    for text in failed:
        click.echo(f"Failed: {text}", err=True)
    if failed:
        raise click.exceptions.Exit(_FAILED)


def _shown(evaluator: Evaluator, translations: Sequence[str], given: _MetricOptions) -> Given:
    """Shows the scores of translations. Returns all that is known of them, as JSON values."""
    scores = evaluator.scores(translations)
    found = dict(zip(evaluator.metrics, scores, strict=True))
    for x in scores:
        click.echo(f"{x.metric}\t{x.score:.2f}\t{x.signature}")
    buckets = evaluator.length_buckets(translations) if given.length_buckets else []
    if buckets:
        side = "reference" if evaluator.sources is None else "source"
        heads = (f"words of the {side}", "sentences", *buckets[0].scores)
        rows = [(x.words, x.sentences, *(f"{y:.2f}" for y in x.scores.values())) for x in buckets]
        click.echo("\n" + _table(heads, rows))
    lines = "".join(f"{line}\n" for line in (*(evaluator.sources or ()), *evaluator.references))
    return {
        "sentences": len(evaluator.references),
        "text_sha256": hashlib.sha256(lines.encode()).hexdigest(),
        "scores": [asdict(x) for x in scores],
        "comparisons": [],
        "length_buckets": [asdict(x) for x in buckets],
        "failed": [
            f"{found[name].metric} is {found[name].score:.4f}, worse than the limit {limit:g}"
            for name, limit in given.fail_under
            if is_worse(name, found[name].score, limit)
        ],
    }


def comparison_table(comparisons: Sequence[Significance], baseline: str) -> str:
    """Returns the results of one significance test as a table. `baseline` is a name."""
    first, name = comparisons[0], _TEST_NAMES[comparisons[0].test]
    rows = [
        (x.metric, f"{x.baseline:.2f}", f"{x.score:.2f}", f"{x.p_value:.4f}", x.signature)
        for x in comparisons
    ]
    table = _table(("metric", "baseline", "score", "p-value", "signature"), rows)
    return f"{name}, {first.samples} samples, seed {first.seed}, against {baseline}:\n{table}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    columns = ["left" if x in (heads[0], "signature") else "right" for x in heads]
    return tabulate(rows, heads, tablefmt="plain", disable_numparse=True, colalign=columns)


class _ScoreOptions(parameters.CheckpointOptions):
    summary: bool = False
    """Write only the totals, and write them to standard output."""
    batch_tokens: int | None = Field(None, ge=1, le=2**31 - 1, title="N")
    """Maximum number of source tokens in a batch, with padding. Smaller batches need less memory.
    Default: 1024."""


@click.command("score")
@parameters.run_argument
@click.argument("source", type=parameters.existing_file)
@click.argument("target", type=parameters.existing_file)
@parameters.options_of(_ScoreOptions)
@parameters.backend_option
def score_command(run: Path, source: Path, target: Path, options: _ScoreOptions) -> None:
    """Score translations with the model of RUN.

    The file TARGET contains the translations of the sentences in the file SOURCE, line by line. For
    each pair of lines, the command writes the log-probability in nats, a tab and the number of
    target tokens. Both numbers include the end-of-sentence token. The command writes totals to
    standard error: number of pairs, number of tokens, nats per token and perplexity.

    \b
    keras-transformer score runs/quickstart test.en test.de > scores.tsv
    keras-transformer score runs/quickstart test.en test.de --summary
    """
    from keras_transformer.translation.open_run import open_model
    from keras_transformer.translation.scoring import Scorer

    pairs = list(read_parallel(source, target))
    if not pairs:
        raise UserError(f"{source} and {target} contain no sentence pairs")
    (opened,) = opened_runs(run)
    model = open_model(opened, options.checkpoint, for_inference=True)
    scorer = Scorer(model, opened.tokenizer(), options.batch_tokens)
    log_probability, tokens = 0.0, 0
    with terminal.writer(None) as write, terminal.progress_bar("scoring", len(pairs)) as bar:
        for chunk in available_chunks(pairs, STREAMED_LINES):
            sources, targets = zip(*chunk, strict=True)
            for score in scorer.score(sources, targets, bar.update):
                if not options.summary:
                    write(f"{score.log_probability:.4f}\t{score.length}\n")
                log_probability += score.log_probability
                tokens += score.length
    nats = -log_probability / tokens
    totals = {"pairs": len(pairs), "tokens": tokens, "nats per token": f"{nats:.4f}"}
    for name, value in {**totals, "perplexity": f"{math.exp(nats):.4f}"}.items():
        click.echo(f"{name}\t{value}", err=not options.summary)
