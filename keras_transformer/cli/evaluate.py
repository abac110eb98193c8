"""The command `evaluate`."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
from click.core import ParameterSource

from keras_transformer._files import output_file
from keras_transformer.cli.common import (
    backend_option,
    batch_tokens_option,
    check_not_of_run,
    check_other_file,
    checkpoint_option,
    engine_option,
    existing_file,
    run_folder,
    shortlist_option,
)
from keras_transformer.cli.search_options import (
    best_search_options,
    checked,
    options_of,
    take_options,
)
from keras_transformer.errors import UserError
from keras_transformer.evaluation import MetricName, SignificanceTest
from keras_transformer.recipe.settings import Evaluation

if TYPE_CHECKING:
    from keras_transformer.evaluation.evaluator import Evaluator, Score

_SETTINGS = ("metrics", "comet_model", "tokenize", "lowercase")
# With --hypotheses, nothing is translated.
_WITHOUT_RUN = {"hypotheses", "source", "reference", "baseline", "tests", "length_buckets", "json"}


@click.command("evaluate")
@click.argument("run", metavar="[RUN]", type=run_folder, required=False)
@click.option(
    "--split",
    type=click.Choice(["test", "validation"]),
    default="test",
    help="Which split of the recipe's text to translate.",
)
@click.option(
    "--source",
    type=existing_file,
    help="File to translate in place of a split, one sentence per line.",
)
@click.option(
    "--reference", type=existing_file, help="File with the reference translations of --source."
)
@click.option(
    "--hypotheses",
    type=existing_file,
    help="Score the translations in this file. RUN is not needed.",
)
@click.option(
    "--metric",
    "metrics",
    type=click.Choice(get_args(MetricName)),
    multiple=True,
    help="Metric. Repeatable. Default: bleu and chrf, and exact-match for generated text.",
)
@click.option(
    "--comet-model",
    metavar="NAME",
    help="COMET model for --metric comet: a checkpoint file, or a name such as "
    "Unbabel/wmt22-comet-da, which is downloaded.",
)
@options_of(Evaluation, set(Evaluation.model_fields) - {"tokenize"})
@click.option("--lowercase", is_flag=True, default=None, help="Ignore case in BLEU.")
@click.option(
    "--baseline",
    type=run_folder,
    help="Compare with these translations: a file, or a run folder whose split was evaluated.",
)
@click.option(
    "--significance",
    "tests",
    type=click.Choice(get_args(SignificanceTest)),
    multiple=True,
    help="Significance test for --baseline. Repeatable. Default: bootstrap.",
)
@click.option("--length-buckets", is_flag=True, help="Show scores by sentence length too.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="File for the translations. Default: a file in RUN/hypotheses for a split, else none.",
)
@click.option("--json", type=click.Path(path_type=Path), help="File for all results as JSON.")
@engine_option
@shortlist_option
@checkpoint_option
@best_search_options
@batch_tokens_option(2048)
@backend_option
def command(**options: Any) -> None:
    """Score translations with sacrebleu: BLEU, chrF, TER, or COMET.

    The command translates a split of RUN's text, or the file --source. It appends the scores to
    RUN/scores.json, and writes the translations of a split to RUN/hypotheses. With --hypotheses,
    it scores a file.

    \b
    keras-transformer evaluate runs/quickstart
    keras-transformer evaluate runs/multi30k_en_de --split validation --beam-size 5
    keras-transformer evaluate runs/a --source in.txt --reference reference.txt --metric ter
    keras-transformer evaluate runs/b --baseline runs/a --length-buckets
    keras-transformer evaluate --hypotheses b.txt --reference reference.txt --baseline a.txt
    """
    _check_options(options)
    inputs = [options[name] for name in ("source", "reference", "hypotheses", "baseline")]
    for name in ("output", "json"):
        check_other_file(options[name], *inputs, option=f"--{name}")
    outputs = {name: options[name] for name in ("output", "json")}
    if all(outputs.values()) and len(set(map(os.path.realpath, outputs.values()))) == 1:
        raise UserError(f"--output and --json must be different files. Received: {outputs['json']}")
    if options["run"]:
        check_not_of_run(options["run"], **outputs)
    with ExitStack() as stack:
        write_json = None
        if path := options.pop("json"):
            write_json = stack.enter_context(output_file(path)).write
        analysis = {name: options.pop(name) for name in ("baseline", "tests", "length_buckets")}
        evaluate = _evaluate_file if options["run"] is None else _evaluate_run
        _report(*evaluate(analysis["baseline"], options), write_json=write_json, **analysis)


def _check_options(options: dict[str, Any]) -> None:
    """Raises `UserError` for options that contradict each other or would have no effect."""
    source_of = click.get_current_context().get_parameter_source
    given = {name for name in options if source_of(name) == ParameterSource.COMMANDLINE}
    if len(given & {"run", "hypotheses"}) != 1:
        raise UserError("give either a RUN or --hypotheses FILE")
    if "hypotheses" in given:
        if refused := given - _WITHOUT_RUN - {*_SETTINGS}:
            names = {x.name: x.opts[0] for x in click.get_current_context().command.params}
            listed = ", ".join(sorted(names[name] for name in refused))
            raise UserError(f"{listed} cannot be used with --hypotheses")
        if "reference" not in given:
            raise UserError("--hypotheses needs --reference FILE")
    elif len(given & {"source", "reference"}) == 1:
        raise UserError("--source and --reference can only be used together")
    elif {"source", "split"} <= given:
        raise UserError("--split cannot be used with --source")
    if given & {"tokenize", "lowercase"} and "bleu" not in (options["metrics"] or ("bleu",)):
        raise UserError("--tokenize and --lowercase can only be used with --metric bleu")
    if "tests" in given and "baseline" not in given:
        raise UserError("--significance can only be used with --baseline")
    if ("comet" in options["metrics"]) != ("comet_model" in given):
        raise UserError("--metric comet and --comet-model can only be used together")
    if "comet_model" in given and not given & {"run", "source"}:
        raise UserError("--metric comet needs --source FILE")


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    """Removes the arguments of `Evaluator` from `options`, and returns those that were given."""
    taken = {name: options.pop(name) for name in _SETTINGS}
    return {name: value for name, value in taken.items() if value}


def _evaluate_file(
    baseline: Path | None, options: dict[str, Any]
) -> "tuple[Evaluator, Sequence[str], Sequence[str] | None, list[Score]]":
    """Returns the evaluator, the translations, the baseline's translations and the scores."""
    from keras_transformer.data.corpus import read_lines
    from keras_transformer.evaluation.evaluator import Evaluator
    from keras_transformer.evaluation.scores import read_baseline

    settings = _settings(options)
    evaluator = Evaluator.from_files(options["reference"], options["source"], **settings)
    hypotheses = list(read_lines(options["hypotheses"]))
    evaluator.check_aligned(str(options["hypotheses"]), hypotheses)
    other = read_baseline(baseline, evaluator, None) if baseline else None
    return evaluator, hypotheses, other, evaluator.scores(hypotheses)


def _evaluate_run(
    baseline: Path | None, options: dict[str, Any]
) -> "tuple[Evaluator, Sequence[str], Sequence[str] | None, list[Score]]":
    """Returns the evaluator, the translations, the baseline's translations and the scores."""
    from keras_transformer.decoding.options import SearchOptions
    from keras_transformer.evaluation.scores import evaluate_run, read_baseline, run_evaluator
    from keras_transformer.runs.run import Run

    del options["hypotheses"]
    run, split, settings = Run.open(options.pop("run")), options.pop("split"), _settings(options)
    source, reference = options.pop("source"), options.pop("reference")
    files = (source, reference) if source else None
    search = checked(run.recipe.evaluation.search_options, **take_options(options, SearchOptions))
    evaluator = run_evaluator(run, split, files, **settings)
    text = f"the {split} text {run.text.files(split)[0]}" if files is None else str(source)
    click.echo(f"Evaluating {text}: {len(evaluator.sources or ()):,} sentences", err=True)
    other = read_baseline(baseline, evaluator, None if files else split) if baseline else None
    place = {"split": split, "files": files, "use_shortlist": options.pop("shortlist")}
    hypotheses, scores = evaluate_run(run, evaluator, options=search, **place, **options)
    return evaluator, hypotheses, other, scores


def _report(
    evaluator: "Evaluator",
    hypotheses: Sequence[str],
    other: Sequence[str] | None,
    scores: "list[Score]",
    *,
    baseline: Path | None,
    tests: Sequence[SignificanceTest],
    length_buckets: bool,
    write_json: Callable[[str], Any] | None,
) -> None:
    from keras_transformer.evaluation import report

    click.echo(report.score_lines(scores))
    comparisons = []
    if other is not None:
        for test in tests or ("bootstrap",):
            click.echo(f"Comparing with {baseline}: {test} test", err=True)
            comparisons += (found := evaluator.compare(hypotheses, other, test))
            click.echo("\n" + report.comparison_table(found, str(baseline)))
    buckets = evaluator.length_buckets(hypotheses) if length_buckets else []
    if buckets:
        side = "reference" if evaluator.sources is None else "source"
        click.echo("\n" + report.length_table(buckets, side))
    if write_json:
        write_json(report.as_json(scores, comparisons, buckets))
