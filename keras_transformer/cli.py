"""The command line on run folders, thin: each command reads its arguments and calls the library.

Commands import what they need when they run, so that --help and a wrong argument answer at once.
"""

import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
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


def _search_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--length-penalty", type=click.FloatRange(min=0), help="Default: recipe's."),
        click.option("--beam-size", type=click.IntRange(min=1), help="Default: recipe's."),
    ):
        command = option(command)
    return command


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

    if data_dir:
        settings = [*settings, f"data.directory={json.dumps(str(data_dir))}"]
    loaded = load_recipe(recipe, settings)
    directory = run or Path("runs") / loaded.name
    opened = (Run.resume if resume else Run.create)(directory, loaded)
    try:
        train(loaded, opened, resume=resume)
    except KeyboardInterrupt:
        options = [word for setting in settings for word in ("--set", setting)]
        words = ["train", recipe, "--run", str(directory), *options, "--resume"]
        click.echo(f"\nStopped. Go on with: keras-transformer {shlex.join(words)}", err=True)
        raise click.exceptions.Exit(130) from None


@main.command("translate")
@_run_argument
@click.argument("file", type=click.Path(path_type=Path, exists=True), required=False)
@click.option("--output", type=click.Path(path_type=Path), help="File to write. Default: stdout.")
@_search_options
@click.option("--n-best", type=click.IntRange(min=1), default=1, help="Translations a sentence.")
@click.option("--scores", is_flag=True, help="Put the log-probability and a tab before each.")
def translate_command(
    run: Path,
    file: Path | None,
    output: Path | None,
    beam_size: int | None,
    length_penalty: float | None,
    n_best: int,
    scores: bool,
) -> None:
    """Translate FILE (or standard input), one sentence a line, by the model in RUN.

    Each sentence gives as many lines as --n-best says, best first. The score is the
    log-probability in nats, divided by the length penalty.

    \b
    echo "twenty-six" | keras-transformer translate runs/quickstart
    keras-transformer translate runs/quickstart in.txt --output out.txt
    keras-transformer translate runs/quickstart in.txt --beam-size 8 --n-best 3 --scores
    """
    from keras_transformer.decoding import Translator

    opened = Run.open(run)
    evaluation = opened.recipe.evaluation
    beam_size = beam_size or evaluation.beam_size
    if n_best > beam_size:
        raise UserError(f"--n-best must be at most the beam size, {beam_size}. Received: {n_best}")
    sentences = _sentences(file)
    translator = Translator(
        opened.model(),
        opened.tokenizer(),
        beam_size=beam_size,
        length_penalty=evaluation.length_penalty if length_penalty is None else length_penalty,
    )
    _refuse_too_long(sentences, translator)
    found = translator.translate_nbest(sentences, n_best=n_best, progress=output is not None)
    lines = (
        f"{hypothesis.score:.4f}\t{hypothesis.text}\n" if scores else f"{hypothesis.text}\n"
        for best in found
        for hypothesis in best
    )
    if output is None:
        click.echo("".join(lines), nl=False)
        return
    with atomic_write(output) as partial:
        partial.write_text("".join(lines), encoding="utf-8")


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
    average = opened.directory / "model.average.keras"
    average_checkpoints(paths, average)
    if opened.model_path.exists():
        os.replace(opened.model_path, opened.directory / "model.previous.keras")
    os.replace(average, opened.model_path)
    click.echo(f"{opened.model_path} is the mean of {', '.join(path.name for path in paths)}")


def _sentences(file: Path | None) -> list[str]:
    from keras_transformer.data.corpus import read_lines

    if file:
        return list(read_lines(file))
    try:
        return [line.decode().rstrip("\r\n") for line in sys.stdin.buffer]
    except UnicodeDecodeError as error:
        raise UserError(f"standard input must be UTF-8: {error}") from None


def _refuse_too_long(sentences: list[str], translator: "Translator") -> None:
    """The library would translate only the beginning; in a file that would go unnoticed."""
    longest = translator.model.max_length - 1
    for number, pieces in enumerate(translator.tokenizer.encode_source(sentences), start=1):
        if len(pieces) > longest:
            raise UserError(
                f"sentence {number} has {len(pieces):,} pieces; the model takes at most {longest:,}"
            )
