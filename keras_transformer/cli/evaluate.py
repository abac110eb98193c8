"""The commands `evaluate` and `score`."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

import click
from click.core import ParameterSource
from pydantic import Field

from keras_transformer._files import output_file
from keras_transformer.cli import common
from keras_transformer.cli.common import AnyPath, ExistingFile, Given, checked
from keras_transformer.errors import UserError
from keras_transformer.evaluation import MetricName, SignificanceTest

# With --hypotheses, nothing is translated, so other options would have no effect.
_WITH_HYPOTHESES = {
    *("hypotheses", "source", "reference", "baseline", "significance", "length_buckets"),
    *("metric", "comet_model", "tokenize", "lowercase", "json_file"),
}


class EvaluateOptions(common.TranslatorOptions):
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
@click.argument("run", metavar="[RUN]", type=common.any_path, required=False)
@common.options_of(EvaluateOptions, "given")
@click.option("--json", "json_file", type=common.any_path, help="File for all results as JSON.")
@common.best_search_options
@common.backend_option
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
        common.check_other_file(path, *inputs, option=name)
    if given.output and json_file and given.output.resolve() == json_file.resolve():
        raise UserError(f"--output and --json must be different files. Received: {json_file}")
    from keras_transformer.evaluation.evaluator import (
        Evaluator,
        as_json,
        comparison_table,
        length_table,
        score_lines,
    )
    from keras_transformer.evaluation.run_evaluation import (
        evaluate_run,
        read_baseline,
        run_evaluator,
    )
    from keras_transformer.runs.run import Run

    settings: Given = given.model_dump(include={"comet_model", "tokenize", "lowercase"})
    settings = {name: x for name, x in {"metrics": given.metric, **settings}.items() if x}
    split, baseline = given.split or "test", given.baseline
    with output_file(json_file) if json_file else nullcontext() as json:
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
    if "significance" in given and "baseline" not in given:
        raise UserError("--significance can only be used with --baseline")
    if ("comet" in metrics) != ("comet_model" in given):
        raise UserError("--metric comet and --comet-model can only be used together")
    if "comet_model" in given and not given & {"run", "source"}:
        raise UserError("--metric comet needs --source FILE")


class ScoreOptions(common.CheckpointOptions):
    """The options of `score`."""

    summary: bool = False
    """Write only the totals, and write them to standard output."""
    batch_tokens: int | None = Field(None, ge=1, le=2**31 - 1, title="N")
    """Maximum number of source tokens in a batch, with padding. Smaller batches need less memory.
    Default: 1024."""


@click.command("score")
@common.run_argument
@click.argument("source", type=common.existing_file)
@click.argument("target", type=common.existing_file)
@common.options_of(ScoreOptions)
@common.backend_option
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
    from keras_transformer.data.corpus import available_chunks
    from keras_transformer.data.parallel_text import read_parallel
    from keras_transformer.runs.run import Run
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
    with common.writer(None) as write, common.progress_bar("scoring", len(pairs)) as bar:
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
