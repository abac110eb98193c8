"""The command line on run folders, thin: each command reads its arguments and calls the library.

Commands import what they need when they run, so that --help and a wrong argument answer at once.
"""

import functools
import json
import math
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from keras_transformer import __version__
from keras_transformer._files import atomic_write, is_disk_full
from keras_transformer.errors import UserError
from keras_transformer.recipe import load_recipe
from keras_transformer.run import Run

if TYPE_CHECKING:
    from keras_transformer.decoding import Translator


class _Failure(click.ClickException):
    exit_code = 2


class _UserErrors(click.Group):
    """Shows what the user can mend as one line and exits with 2; a defect keeps its traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            message = str(error)
        except OSError as error:
            if not is_disk_full(error):
                raise
            message = f"no space left on the disk: {error}"
        raise _Failure(" ".join(message.split()))


@click.group(cls=_UserErrors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="keras-transformer")
def main() -> None:
    """Train, translate and evaluate the Transformer on TensorFlow, JAX or PyTorch.

    The environment variable KERAS_BACKEND chooses the engine.

    \b
    keras-transformer train quickstart
    echo "twenty-six" | keras-transformer translate runs/quickstart
    keras-transformer evaluate runs/quickstart
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before any command loads TensorFlow


def _options(*options: Callable[..., Any]) -> Callable[..., Any]:
    """One decorator of several, for commands that share options."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_search_options = _options(
    click.option("--beam-size", type=click.IntRange(min=1), help="Default: recipe's."),
    click.option("--length-penalty", type=click.FloatRange(min=0), help="Default: recipe's."),
)
_existing_file = click.Path(path_type=Path, exists=True, dir_okay=False)
_run_argument = click.argument("run", metavar="RUN", type=click.Path(path_type=Path))


@main.command("train")
@click.argument("recipe")
@click.option("--run", type=click.Path(path_type=Path), help="Folder. Default: runs/NAME.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
    help="Folder that holds the recipe's files; nothing is downloaded then.",
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Replaces a setting.")
@click.option("--resume", is_flag=True, help="Go on with a run that was stopped.")
def train_command(
    recipe: str, run: Path | None, data_dir: Path | None, settings: Sequence[str], resume: bool
) -> None:
    """Train by RECIPE: a YAML file, or the name of one that comes with the package.

    \b
    keras-transformer train quickstart
    keras-transformer train multi30k_en_de --data-dir ~/multi30k --run runs/first
    keras-transformer train quickstart --set training.steps=500 --set data.target_language=ko
    keras-transformer train quickstart --resume
    """
    from keras_transformer.training import train
    from keras_transformer.training.distribution import start

    if data_dir:
        settings = [*settings, f"data.directory={json.dumps(str(data_dir))}"]
    loaded = load_recipe(recipe, settings)
    directory = run or Path("runs") / loaded.name
    opened = start(loaded).open_run(directory, loaded, resume)
    try:
        train(opened, resume=resume)
    except KeyboardInterrupt:
        options = [word for setting in settings for word in ("--set", setting)]
        words = ["train", recipe, "--run", str(directory), *options, "--resume"]
        click.echo(f"\nStopped. Go on with: keras-transformer {shlex.join(words)}", err=True)
        raise click.exceptions.Exit(130) from None


@main.command("budget")
@click.argument("recipe")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Replaces a setting.")
@click.option(
    "--memory",
    type=click.FloatRange(min=0, min_open=True),
    help="GiB for the whole process on a CPU. Default: what is available. A GPU has its own.",
)
def budget_command(recipe: str, settings: Sequence[str], memory: float | None) -> None:
    """Find the largest training.tokens_per_batch of RECIPE that fits into memory.

    Makes steps on random sentences of the greatest length that the recipe allows, each in a process
    of its own; no text is needed. With several devices, it is the budget of one of them.

    
    keras-transformer budget wmt14_en_de_base
    keras-transformer budget wmt14_en_de_big --memory 12 --set training.gradient_checkpointing=true
    """
    from keras_transformer.token_budget import Try, available_mebibytes, find_token_budget

    def show(tried: Try) -> None:
        shape = " x ".join(map(str, tried.shape))
        figures = f"{'too much':>10}"
        if tried.mebibytes is not None and tried.seconds is not None:
            figures = f"{tried.mebibytes:>10,.0f}{tried.seconds:>12.2f}{tried.tokens_per_s:>12,.0f}"
        click.echo(f"{tried.tokens:>10,}{shape:>18}{figures}")

    loaded = load_recipe(recipe, settings)
    limit = memory * 1024 if memory else available_mebibytes()
    columns = f"{'tokens':>10}{'B x S x T':>18}{'peak MiB':>10}{'s per step':>12}{'tokens/s':>12}"
    click.echo(columns)
    best = find_token_budget(loaded, limit, show)
    click.echo(
        f"largest that fits into {limit:,.0f} MiB: --set training.tokens_per_batch={best.tokens}"
    )


_translator_options = _options(
    click.option(
        "--length-penalty-form",
        type=click.Choice(["wu", "power"]),
        default="wu",
        show_default=True,
        help="((5 + n) / 6) ** alpha, or n ** alpha.",
    ),
    click.option(
        "--coverage-penalty",
        type=click.FloatRange(min=0),
        default=0.0,
        help="Weight of what is left out of the source. Default: 0.",
    ),
    click.option(
        "--min-length",
        type=click.IntRange(min=1),
        default=1,
        help="Fewest tokens of a translation, its end included. Default: 1.",
    ),
    click.option(
        "--max-length",
        type=click.IntRange(min=1),
        help="Most tokens, its end included. Default: 50 more than the source has.",
    ),
    click.option(
        "--repetition-penalty",
        type=click.FloatRange(min=0, min_open=True),
        default=1.0,
        help="Factor on the log-probability of tokens that are there already. Default: 1.",
    ),
    click.option(
        "--no-repeat-ngrams",
        "no_repeat_ngram_size",
        type=click.IntRange(min=0),
        default=0,
        metavar="SIZE",
        help="Let no n-gram of so many tokens appear twice. Default: any may.",
    ),
    click.option(
        "--overlong",
        type=click.Choice(["split", "cut"]),
        default="split",
        show_default=True,
        help="What becomes of a line of more pieces than the model takes.",
    ),
    click.option(
        "--ensemble",
        "others",
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="RUN",
        help="Translate by the mean of several models with one tokenizer; repeat it for each.",
    ),
)
_sampling_options = _options(
    click.option("--sample", type=click.IntRange(min=1), help="Draw so many at random instead."),
    click.option(
        "--mbr", type=click.IntRange(min=1), help="Draw so many and take the one most like all."
    ),
    click.option(
        "--temperature",
        type=click.FloatRange(min=0, min_open=True),
        default=1.0,
        help="Below 1 samples are less random. Default: 1.",
    ),
    click.option(
        "--top-k",
        type=click.IntRange(min=0),
        default=0,
        help="Draw from so many most probable tokens. Default: all.",
    ),
    click.option(
        "--top-p",
        type=click.FloatRange(0, 1, min_open=True),
        default=1.0,
        help="Draw from the most probable tokens that make up this share. Default: 1.",
    ),
    click.option("--seed", type=click.IntRange(min=0), default=0, help="Default: 0."),
)
_TRANSLATOR_OPTIONS = (
    "beam_size",
    "length_penalty",
    "length_penalty_form",
    "coverage_penalty",
    "min_length",
    "max_length",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "overlong",
)


@main.command("translate")
@_run_argument
@click.argument("file", type=_existing_file, required=False)
@click.option("--output", type=click.Path(path_type=Path), help="File to write. Default: stdout.")
@click.option("--n-best", type=click.IntRange(min=1), default=1, help="Translations a sentence.")
@_search_options
@_translator_options
@click.option("--prefix", "prefixes", type=_existing_file, help="What translations begin with.")
@click.option("--required", type=_existing_file, help="Words that they contain.")
@click.option("--forbidden", type=_existing_file, help="Words that they do not contain.")
@_sampling_options
@click.option("--scores", is_flag=True, help="Put the score and a tab before each.")
@click.option("--alignments", is_flag=True, help="Put a tab and pairs of words behind each.")
def translate_command(run: Path, file: Path | None, output: Path | None, **options: Any) -> None:
    """Translate FILE (or standard input), one sentence a line, by the model in RUN.

    Lines are answered as they come. Each gives as many lines as --n-best or --sample says, best
    first. The score is the log-probability in nats, divided by the length penalty; with --mbr it
    is the expected chrF. Alignments are pairs source-target of words, counted from 0, such as
    "0-0 1-2". The files of --prefix, --required and --forbidden have a line for each sentence,
    blank where there is nothing, and tabs between words.

    \b
    echo "twenty-six" | keras-transformer translate runs/quickstart
    keras-transformer translate runs/quickstart in.txt --output out.txt
    keras-transformer translate runs/quickstart in.txt --beam-size 8 --n-best 3 --scores
    keras-transformer translate runs/a in.txt --ensemble runs/b --ensemble runs/c
    keras-transformer translate runs/a in.txt --no-repeat-ngrams 3 --coverage-penalty 0.2
    keras-transformer translate runs/a in.txt --prefix begin.txt --forbidden words.tsv
    keras-transformer translate runs/a in.txt --sample 5 --temperature 0.8 --top-p 0.95 --seed 7
    keras-transformer translate runs/a in.txt --mbr 32
    keras-transformer translate runs/a in.txt --alignments
    """
    from keras_transformer.text_lines import read_source, translate_lines

    _check_modes(**options)
    beside = [options.pop(name) for name in ("prefixes", "required", "forbidden")]
    total = _count(read_source(file, *beside), file, *beside)
    translator = _translator(run, options)
    with _writer(output) as write, _progress_bar(total, output) as bar, _warning_lines():
        lines = read_source(file, *beside)
        for text in translate_lines(translator, lines, progress=bar.update, **options):
            write(text)


@main.command("client")
@click.argument("model")
@click.argument("file", type=_existing_file, required=False)
@click.option("--output", type=click.Path(path_type=Path), help="File to write. Default: stdout.")
@click.option("--address", help="Default: http://localhost:8501; with gRPC localhost:8500.")
@click.option("--protocol", type=click.Choice(["rest", "grpc"]), default="rest", show_default=True)
@click.option("--model-version", "version", type=click.IntRange(min=0), help="Default: the newest.")
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="Most sentences of one request.",
)
@click.option("--n-best", type=click.IntRange(min=1), default=1, help="Translations a sentence.")
@click.option("--beam-size", type=click.IntRange(min=1), help="Default: as exported.")
@click.option("--length-penalty", type=click.FloatRange(min=0), help="Default: as exported.")
@click.option("--max-length", type=click.IntRange(min=1), help="Default: as exported.")
@click.option("--scores", is_flag=True, help="Put the score and a tab before each.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds that one request may take.",
)
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="Tries after the first while the server is away, full or loading the model.",
)
def client_command(
    model: str,
    file: Path | None,
    output: Path | None,
    batch_size: int,
    n_best: int,
    beam_size: int | None,
    length_penalty: float | None,
    max_length: int | None,
    scores: bool,
    **server: Any,
) -> None:
    """Translate FILE (or standard input) by MODEL on a TensorFlow Serving server.

    MODEL is its name there. One sentence a line; lines are answered as they come. The score is the
    log-probability in nats, divided by the length penalty. gRPC needs tensorflow-serving-api:
    pip install 'keras3-transformer[serving]'.

    \b
    echo "twenty-six" | keras-transformer client quickstart
    keras-transformer client quickstart in.txt --output out.txt --batch-size 16
    keras-transformer client quickstart in.txt --address http://translate.example:8501
    keras-transformer client quickstart in.txt --protocol grpc --address localhost:8500
    keras-transformer client quickstart in.txt --beam-size 8 --n-best 3 --scores
    keras-transformer client quickstart in.txt --model-version 2 --timeout 5 --retries 0
    """
    from keras_transformer.data.corpus import read_lines, read_standard_input
    from keras_transformer.serving import connect

    search = {"beam_size": beam_size, "length_penalty": length_penalty, "max_length": max_length}
    if beam_size is not None and n_best > beam_size:
        raise UserError(f"--n-best must be at most the beam size, {beam_size}. Received: {n_best}")
    total = _count(read_lines(file), file) if file else None
    client = connect(model, **server)
    with _writer(output) as write, _progress_bar(total, output) as bar, _warning_lines():
        lines = read_lines(file) if file else read_standard_input()
        for found in client.stream(lines, batch_size, n_best, **search):
            write("".join(translation.line(scores) for best in found for translation in best))
            bar.update(len(found))


@main.command("score")
@_run_argument
@click.argument("source", type=_existing_file)
@click.argument("target", type=_existing_file)
@click.option("--summary", is_flag=True, help="Write the figures of the whole text alone.")
def score_command(run: Path, source: Path, target: Path, summary: bool) -> None:
    """Say how probable the model in RUN finds the lines of TARGET as translations of SOURCE.

    Writes a line for each pair: its log-probability in nats and its number of tokens, both with
    the end of the sentence, and a tab between them. The figures of the whole text follow on
    standard error.

    \b
    keras-transformer score runs/quickstart test.en test.de > scores.tsv
    keras-transformer score runs/quickstart test.en test.de --summary
    """
    from keras_transformer.data import read_parallel
    from keras_transformer.decoding.scorer import Scorer
    from keras_transformer.text_lines import score_lines

    pairs = read_parallel(source, target)
    total = _count(pairs, source, target)
    opened = Run.open(run)
    scorer = Scorer(opened.model(), opened.tokenizer())
    log_probability, tokens, count = 0.0, 0, 0
    with _progress_bar(total, None) as bar:
        for score in score_lines(scorer, pairs, bar.update):
            if not summary:
                click.echo(f"{score.log_probability:.4f}\t{score.length}")
            log_probability += score.log_probability
            tokens += score.length
            count += 1
    if not count:
        raise UserError(f"{source} and {target} hold no pairs")
    nats = -log_probability / tokens
    figures = {"pairs": count, "tokens": tokens, "nats per token": f"{nats:.4f}"}
    figures["perplexity"] = f"{math.exp(nats):.4f}"
    for name, figure in figures.items():
        click.echo(f"{name}\t{figure}", err=not summary)


@main.command("evaluate")
@_run_argument
@click.option("--split", type=click.Choice(["test", "validation"]), default="test")
@_search_options
def evaluate_command(run: Path, **arguments: Any) -> None:
    """Score the model in RUN by sacrebleu, and append the scores to RUN/scores.json.

    \b
    keras-transformer evaluate runs/quickstart
    keras-transformer evaluate runs/multi30k_en_de --split validation --beam-size 5
    """
    from keras_transformer.evaluation import evaluate_run

    for score in evaluate_run(Run.open(run), **arguments):
        click.echo(f"{score.metric}\t{score.score:.2f}\t{score.signature}")


@main.command("average")
@_run_argument
@click.option("--last", type=click.IntRange(min=1), required=True, help="How many checkpoints.")
def average_command(run: Path, last: int) -> None:
    """Make RUN/model.keras the mean of the last checkpoints; the old one is model.previous.keras.

    \b
    keras-transformer average runs/quickstart --last 3
    """
    from keras_transformer.training import average_checkpoints

    opened = Run.open(run)
    paths = opened.checkpoints()[-last:]
    if len(paths) < last:
        raise UserError(f"{run} has {len(paths)} checkpoints. Received: --last {last}")
    previous = opened.directory / "model.previous.keras"
    average_checkpoints(paths, opened.model_path, previous)
    click.echo(f"{opened.model_path} is the mean of {', '.join(path.name for path in paths)}")


@main.command("export")
@_run_argument
@click.option(
    "--format",
    required=True,
    type=click.Choice(["saved_model", "ctranslate2", "onnx"]),
    help="What to write.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Folder to write. Default: saved_models/NAME; RUN/ctranslate2 or RUN/onnx, with the type "
    "of weights as in RUN/onnx-int8.",
)
@click.option(
    "--quantization",
    metavar="TYPE",
    help="Weights of ctranslate2 and onnx: float32, int8; ctranslate2 also int16, float16, "
    "bfloat16, int8_float32, int8_float16, int8_bfloat16. Default: float32.",
)
@_search_options
@click.option(
    "--max-length",
    type=click.IntRange(min=1),
    help="Most tokens of a translation. Default: 50 more than the source has.",
)
def export_command(run: Path, **arguments: Any) -> None:
    """Write the model in RUN in the format of another engine.

    saved_model is for TensorFlow Serving: the next version of a model that takes and gives
    strings. ctranslate2 is for ctranslate2.Translator. onnx holds encoder, decoder step and
    translate.py, which searches with them by NumPy, onnxruntime and sentencepiece alone.

    What was written is loaded and compared with the model on sentences of the run; a float32
    export that differs is not kept. Beam size and length penalty become the defaults of
    saved_model and onnx, the maximum length that of saved_model.

    \b
    keras-transformer export runs/quickstart --format saved_model
    keras-transformer export runs/quickstart --format ctranslate2 --quantization int8
    keras-transformer export runs/quickstart --format onnx --output quickstart-onnx
    echo "twenty-six" | python quickstart-onnx/translate.py
    """
    opened = Run.open(run)
    from keras_transformer.export.export_run import export_run

    exported = export_run(opened, **arguments)
    click.echo(f"{exported.directory}: {exported.comparison}")


def _check_modes(
    sample: int | None,
    mbr: int | None,
    n_best: int,
    alignments: bool,
    prefixes: Path | None,
    required: Path | None,
    forbidden: Path | None,
    **_: Any,
) -> None:
    if sample and mbr:
        raise UserError("--sample and --mbr exclude each other")
    if (sample or mbr) and (n_best > 1 or alignments or prefixes or required or forbidden):
        raise UserError(
            "--n-best, --alignments, --prefix, --required and --forbidden belong to beam search; "
            "--sample and --mbr do without it"
        )


def _translator(run: Path, options: dict[str, Any]) -> "Translator":
    """The translator of one run or several; takes its options out of those of the command."""
    from keras_transformer.decoding import Translator

    runs = [Run.open(path) for path in (run, *options.pop("others"))]
    own = {name: options.pop(name) for name in _TRANSLATOR_OPTIONS}
    for name in ("beam_size", "length_penalty"):
        if own[name] is None:
            own[name] = getattr(runs[0].recipe.evaluation, name)
    if options["n_best"] > own["beam_size"]:
        raise UserError(
            f"--n-best must be at most the beam size, {own['beam_size']}. "
            f"Received: {options['n_best']}"
        )
    tokenizers = [opened.tokenizer() for opened in runs]
    for opened, tokenizer in zip(runs, tokenizers, strict=True):
        if tokenizer.fingerprint != tokenizers[0].fingerprint:
            raise UserError(f"{opened.directory} has another tokenizer than {run}")
    try:
        return Translator(_model(runs), tokenizers[0], **own)
    except ValueError as error:
        raise UserError(str(error)) from None


def _model(runs: Sequence[Run]) -> Any:
    models = [run.model() for run in runs]
    if len(models) == 1:
        return models[0]
    from keras_transformer.decoding.ensemble import Ensemble

    return Ensemble(models)


def _count(lines: Iterable[Any], *files: Path | None) -> int | None:
    """How many lines there are, and whether all is well with them; None if a pipe is among them.

    A pipe can be read only once.
    """
    if files[0] is None or not all(file.is_file() for file in files if file):
        return None
    return sum(1 for _ in lines)


@contextmanager
def _writer(output: Path | None) -> Iterator[Callable[[str], Any]]:
    """What to write by: to standard output at once, or to a file that appears when complete."""
    if output is None:
        yield functools.partial(click.echo, nl=False)
        return
    with atomic_write(output) as partial, partial.open("w", encoding="utf-8") as file:
        yield file.write


@contextmanager
def _warning_lines() -> Iterator[None]:
    """Shows warnings as lines, not as places in the code."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: click.echo(f"Warning: {message}", err=True)
        yield


def _progress_bar(total: int | None, output: Path | None) -> Any:
    """Counts sentences on standard error, unless they come or go line by line."""
    from tqdm import tqdm

    is_shown = total is not None and (output is not None or not sys.stdout.isatty())
    return tqdm(total=total, unit="sentence", disable=not is_shown)
