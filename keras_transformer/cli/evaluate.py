"""The commands `evaluate` and `score`."""

import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import click
from click.core import ParameterSource
from pydantic import Field
from tabulate import tabulate

from keras_transformer._files import output_file
from keras_transformer.cli import parameters, terminal
from keras_transformer.cli.parameters import AnyPath, ExistingFile, Given, checked
from keras_transformer.errors import UserError
from keras_transformer.evaluation.evaluator import (
    Evaluator,
    LengthBucket,
    MetricName,
    Score,
    Significance,
    SignificanceTest,
)
from keras_transformer.evaluation.run_evaluation import evaluate_run, read_baseline, run_evaluator
from keras_transformer.runs.run import Run

# With --hypotheses, nothing is translated, so other options would have no effect.
_WITH_HYPOTHESES = {
    *("hypotheses", "source", "reference", "baseline", "significance", "length_buckets"),
    *("metric", "comet_model", "tokenize", "lowercase", "json_file"),
}

_TEST_NAMES = {
    "bootstrap": "Paired bootstrap resampling",
    "randomization": "Paired approximate randomization",
}


class EvaluateOptions(parameters.TranslatorOptions):
    """The options of `evaluate`, but for those of search."""

    split: Literal["test", "validation"] | None = None
    """Which split of the recipe's text to translate. Default: test."""
    source: ExistingFile = None
    """File to translate in place of a split, one sentence per line."""
    reference: ExistingFile = None
    """File with the reference translations of --source."""
    hypotheses: ExistingFile = None
    """Score the translations in this file. RUN is not needed."""
    metric: tuple[MetricName, ...] = ()
    """Metric. Repeatable. Default: bleu and chrf, and exact-match for generated text."""
    comet_model: str | None = Field(None, title="NAME")
    """COMET model for --metric comet: a checkpoint file, or a name such as
    Unbabel/wmt22-comet-da, which is downloaded."""
    tokenize: Literal["13a", "none", "intl", "char", "zh", "ja-mecab", "ko-mecab"] | None = None
    """Tokenization of BLEU, as in sacrebleu. Default: that of the recipe, or 13a without RUN."""
    lowercase: bool = False
    """Ignore case in BLEU."""
    baseline: AnyPath = None
    """Compare with these translations: a file, or a run folder whose split was evaluated."""
    significance: tuple[SignificanceTest, ...] = ()
    """Significance test for --baseline. Repeatable. Default: bootstrap."""
    length_buckets: bool = False
    """Show scores by sentence length too."""
    output: AnyPath = None
    """File for the translations. Default: a file in RUN/hypotheses for a split, else none."""


@click.command("evaluate")
@click.argument("run", metavar="[RUN]", type=parameters.any_path, required=False)
@parameters.options_of(EvaluateOptions, "given")
@click.option("--json", "json_file", type=parameters.any_path, help="File for all results as JSON.")
@parameters.best_search_options
@parameters.backend_option
def evaluate_command(
    run: Path | None, given: EvaluateOptions, json_file: Path | None, search: Given
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
    _check_given(given.metric)
    inputs = (given.source, given.reference, given.hypotheses, given.baseline)
    for name, path in (("--output", given.output), ("--json", json_file)):
        terminal.check_other_file(path, *inputs, option=name)
    if given.output and json_file and given.output.resolve() == json_file.resolve():
        raise UserError(f"--output and --json must be different files. Received: {json_file}")
    settings: Given = given.model_dump(include={"comet_model", "tokenize", "lowercase"})
    settings = {name: x for name, x in {"metrics": given.metric, **settings}.items() if x}
    split, baseline = given.split or "test", given.baseline
    with output_file(json_file) if json_file else nullcontext() as json_target:
        if run is None:
            assert given.reference and given.hypotheses
            evaluator = Evaluator.from_files(given.reference, given.source, **settings)
            translations = read_baseline(given.hypotheses, evaluator, None)
        else:
            opened = Run.open(run)
            files = (given.source, given.reference) if given.source and given.reference else None
            options = checked(opened.recipe.evaluation.search_options, **search)
            evaluator = run_evaluator(opened, split, files, **settings)
            text = given.source or f"the {split} text {opened.text.files(split)[0]}"
            click.echo(f"Evaluating {text}: {len(evaluator.sources or ()):,} sentences", err=True)
        if baseline:
            of_split = None if given.hypotheses or given.source else split
            other = read_baseline(baseline, evaluator, of_split)
        if run is None:
            scores = evaluator.scores(translations)
        else:
            arguments = {**given.arguments(), "options": options, "output": given.output}
            translations, scores = evaluate_run(
                opened, evaluator, split=split, files=files, **arguments
            )
        click.echo(score_lines(scores))
        comparisons = []
        for test in given.significance or ("bootstrap",) if baseline else ():
            click.echo(f"Comparing with {baseline}: {test} test", err=True)
            comparisons += (found := evaluator.compare(translations, other, test))
            click.echo("\n" + comparison_table(found, str(baseline)))
        buckets = evaluator.length_buckets(translations) if given.length_buckets else []
        if buckets:
            side = "reference" if evaluator.sources is None else "source"
            click.echo("\n" + length_table(buckets, side))
        if json_target:
            json_target.write(
                as_json(scores=scores, comparisons=comparisons, length_buckets=buckets)
            )


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
    if "significance" in given and "baseline" not in given:
        raise UserError("--significance can only be used with --baseline")
    if ("comet" in metrics) != ("comet_model" in given):
        raise UserError("--metric comet and --comet-model can only be used together")
    if "comet_model" in given and not given & {"run", "source"}:
        raise UserError("--metric comet needs --source FILE")


def score_lines(scores: Sequence[Score]) -> str:
    """Returns a line per score: metric, tab, score in percent, tab, signature."""
    return "\n".join(f"{x.metric}\t{x.score:.2f}\t{x.signature}" for x in scores)


def comparison_table(comparisons: Sequence[Significance], baseline: str) -> str:
    """Returns the results of one significance test as a table. `baseline` is a name."""
    first, name = comparisons[0], _TEST_NAMES[comparisons[0].test]
    rows = [
        (x.metric, f"{x.baseline:.2f}", f"{x.score:.2f}", f"{x.p_value:.4f}", x.signature)
        for x in comparisons
    ]
    table = _table(("metric", "baseline", "score", "p-value", "signature"), rows)
    return f"{name}, {first.samples} samples, seed {first.seed}, against {baseline}:\n{table}"


def length_table(buckets: Sequence[LengthBucket], side: str) -> str:
    """Returns the scores by sentence length as a table. `side` is "source" or "reference"."""
    rows = [(x.words, x.sentences, *(f"{y:.2f}" for y in x.scores.values())) for x in buckets]
    return _table((f"words of the {side}", "sentences", *buckets[0].scores), rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    columns = ["left" if x in (heads[0], "signature") else "right" for x in heads]
    return tabulate(rows, heads, tablefmt="plain", disable_numparse=True, colalign=columns)


def as_json(**results: Sequence[Any]) -> str:
    """Returns lists of results, such as of `Score`, as a JSON object."""
    content = {name: [asdict(entry) for entry in entries] for name, entries in results.items()}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


class ScoreOptions(parameters.CheckpointOptions):
    """The options of `score`."""

    summary: bool = False
    """Write only the totals, and write them to standard output."""
    batch_tokens: int | None = Field(None, ge=1, le=2**31 - 1, title="N")
    """Maximum number of source tokens in a batch, with padding. Smaller batches need less memory.
    Default: 1024."""


@click.command("score")
@parameters.run_argument
@click.argument("source", type=parameters.existing_file)
@click.argument("target", type=parameters.existing_file)
@parameters.options_of(ScoreOptions)
@parameters.backend_option
def score_command(run: Path, source: Path, target: Path, options: ScoreOptions) -> None:
    """Score translations with the model of RUN.

    The file TARGET contains the translations of the sentences in the file SOURCE, line by line. For
    each pair of lines, the command writes the log-probability in nats, a tab and the number of
    target tokens. Both numbers include the end-of-sentence token. The command writes totals to
    standard error: number of pairs, number of tokens, nats per token and perplexity.

    \b
    keras-transformer score runs/quickstart test.en test.de > scores.tsv
    keras-transformer score runs/quickstart test.en test.de --summary
    """
    from keras_transformer.data.parallel_text import read_parallel
    from keras_transformer.data.text_files import available_chunks
    from keras_transformer.translation.base_translator import STREAMED_LINES
    from keras_transformer.translation.open_run import open_model
    from keras_transformer.translation.scoring import Scorer

    pairs = list(read_parallel(source, target))
    if not pairs:
        raise UserError(f"{source} and {target} contain no sentence pairs")
    opened = Run.open(run)
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
