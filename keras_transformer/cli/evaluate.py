"""The command `evaluate`."""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TextIO, get_args

import click
from click.core import ParameterSource

from keras_transformer._files import output_file
from keras_transformer.cli.common import (
    backend_option,
    batch_tokens_option,
    check_other_file,
    checkpoint_option,
    engine_option,
    existing_file,
    run_folder,
    shortlist_option,
)
from keras_transformer.cli.search_options import Given, best_search_options, checked, options_of
from keras_transformer.data.corpus import read_lines
from keras_transformer.errors import UserError
from keras_transformer.evaluation.evaluator import (
    Evaluator,
    MetricName,
    Score,
    SignificanceTest,
    as_json,
    comparison_table,
    length_table,
    score_lines,
)
from keras_transformer.evaluation.scores import evaluate_run, read_baseline, run_evaluator
from keras_transformer.recipe.settings import Evaluation
from keras_transformer.runs.run import Checkpoint, Engine, Run
from keras_transformer.runs.text import Split

# With --hypotheses, nothing is translated, so other options would have no effect.
_WITH_HYPOTHESES = {
    *("hypotheses", "source", "reference", "baseline", "tests", "length_buckets", "json_file"),
    *("metrics", "comet_model", "tokenize", "lowercase"),
}


@click.command("evaluate")
@click.argument("run", metavar="[RUN]", type=run_folder, required=False)
@click.option(
    "--split",
    type=click.Choice(["test", "validation"]),
    help="Which split of the recipe's text to translate. Default: test.",
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
@options_of(Evaluation, "tokenization", set(Evaluation.model_fields) - {"tokenize"})
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
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="File for all results as JSON."
)
@engine_option
@shortlist_option
@checkpoint_option
@best_search_options
@batch_tokens_option(2048)
@backend_option
def command(
    run: Path | None,
    split: Split | None,
    source: Path | None,
    reference: Path | None,
    hypotheses: Path | None,
    metrics: Sequence[MetricName],
    comet_model: str | None,
    tokenization: Given,
    lowercase: bool | None,
    baseline: Path | None,
    tests: Sequence[SignificanceTest],
    length_buckets: bool,
    output: Path | None,
    json_file: Path | None,
    engine: Engine,
    shortlist: bool,
    checkpoint: Checkpoint | None,
    search: Given,
    tokens_per_batch: int | None,
) -> None:
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
    _check_given(metrics)
    for name, path in (("--output", output), ("--json", json_file)):
        check_other_file(path, source, reference, hypotheses, baseline, option=name)
    if output and json_file and os.path.realpath(output) == os.path.realpath(json_file):
        raise UserError(f"--output and --json must be different files. Received: {json_file}")
    given = {"metrics": metrics, "comet_model": comet_model, "lowercase": lowercase}
    settings: Given = {name: x for name, x in given.items() if x} | tokenization
    with output_file(json_file) if json_file else nullcontext() as json:
        other: Sequence[str] | None = None
        if run is None:
            assert hypotheses is not None and reference is not None
            evaluator = Evaluator.from_files(reference, source, **settings)
            translations = list(read_lines(hypotheses))
            evaluator.check_aligned(str(hypotheses), translations)
            if baseline:
                other = read_baseline(baseline, evaluator, None)
            scores = evaluator.scores(translations)
        else:
            opened, of_split = Run.open(run), split or "test"
            files = (source, reference) if source and reference else None
            options = checked(opened.recipe.evaluation.search_options, **search)
            evaluator = run_evaluator(opened, of_split, files, **settings)
            text = source or f"the {of_split} text {opened.text.files(of_split)[0]}"
            click.echo(f"Evaluating {text}: {len(evaluator.sources or ()):,} sentences", err=True)
            if baseline:
                other = read_baseline(baseline, evaluator, None if files else of_split)
            translations, scores = evaluate_run(
                opened,
                evaluator,
                split=of_split,
                files=files,
                options=options,
                engine=engine,
                use_shortlist=shortlist,
                checkpoint=checkpoint,
                tokens_per_batch=tokens_per_batch,
                output=output,
            )
        _report(evaluator, translations, scores, other, baseline, tests, length_buckets, json)


def _report(
    evaluator: Evaluator,
    translations: Sequence[str],
    scores: list[Score],
    other: Sequence[str] | None,
    baseline: Path | None,
    tests: Sequence[SignificanceTest],
    length_buckets: bool,
    json: TextIO | None,
) -> None:
    click.echo(score_lines(scores))
    comparisons = []
    if other is not None:
        for test in tests or ("bootstrap",):
            click.echo(f"Comparing with {baseline}: {test} test", err=True)
            comparisons += (found := evaluator.compare(translations, other, test))
            click.echo("\n" + comparison_table(found, str(baseline)))
    buckets = evaluator.length_buckets(translations) if length_buckets else []
    if buckets:
        side = "reference" if evaluator.sources is None else "source"
        click.echo("\n" + length_table(buckets, side))
    if json:
        json.write(as_json(scores=scores, comparisons=comparisons, length_buckets=buckets))


def _check_given(metrics: Sequence[str]) -> None:
    """Raises `UserError` for options that contradict each other or would have no effect."""
    context = click.get_current_context()
    names = {str(x.name): x.opts[0] for x in context.command.params}
    of_user = ParameterSource.COMMANDLINE
    given = {name for name in names if context.get_parameter_source(name) == of_user}
    if len(given & {"run", "hypotheses"}) != 1:
        raise UserError("give either a RUN or --hypotheses FILE")
    if "hypotheses" in given:
        if refused := given - _WITH_HYPOTHESES:
            listed = ", ".join(sorted(names[name] for name in refused))
            raise UserError(f"{listed} cannot be used with --hypotheses")
        if "reference" not in given:
            raise UserError("--hypotheses needs --reference FILE")
    elif len(given & {"source", "reference"}) == 1:
        raise UserError("--source and --reference can only be used together")
    elif {"source", "split"} <= given:
        raise UserError("--split cannot be used with --source")
    if given & {"tokenize", "lowercase"} and "bleu" not in (metrics or ("bleu",)):
        raise UserError("--tokenize and --lowercase can only be used with --metric bleu")
    if "tests" in given and "baseline" not in given:
        raise UserError("--significance can only be used with --baseline")
    if ("comet" in metrics) != ("comet_model" in given):
        raise UserError("--metric comet and --comet-model can only be used together")
    if "comet_model" in given and not given & {"run", "source"}:
        raise UserError("--metric comet needs --source FILE")
