"""The command `budget`."""

from collections.abc import Sequence

import click

from keras_transformer.cli.common import backend_option, recipe_argument, set_option
from keras_transformer.cli.memory import keep_freed_memory


@click.command("budget")
@recipe_argument
@set_option
@click.option(
    "--memory",
    type=click.FloatRange(min=0, min_open=True),
    help="Memory limit in GiB for training on a CPU. Default: the available memory. On a GPU, the "
    "limit is always the memory of the GPU.",
)
@backend_option
def command(recipe: str, overrides: Sequence[str], memory: float | None) -> None:
    """Find the largest batch of RECIPE that fits into memory.

    The result is a value for training.tokens_per_batch. The command tests each value in a new
    process, with training steps on random sentences of the maximum length. It needs no text files.
    With several devices, the result is for one device. B x S x T in the table is the shape of the
    batch: number of sentences, source tokens and target tokens of each.

    \b
    keras-transformer budget wmt14_en_de_base
    keras-transformer budget wmt14_en_de_big --memory 12 --set training.gradient_checkpointing=true
    """
    from keras_transformer.recipe.files import load_recipe
    from keras_transformer.training.token_budget import Try, available_mebibytes, find_token_budget

    def show(tried: Try) -> None:
        shape = " x ".join(map(str, tried.shape))
        figures = f"{'too much':>10}"
        if tried.mebibytes is not None and tried.seconds is not None:
            figures = f"{tried.mebibytes:>10,.0f}{tried.seconds:>12.2f}{tried.tokens_per_s:>12,.0f}"
        click.echo(f"{tried.tokens:>10,}{shape:>18}{figures}")

    keep_freed_memory()
    loaded = load_recipe(recipe, overrides)
    limit = memory * 1024 if memory else available_mebibytes()
    click.echo(f"{'tokens':>10}{'B x S x T':>18}{'peak MiB':>10}{'s per step':>12}{'tokens/s':>12}")
    best = find_token_budget(loaded, limit, show)
    click.echo(
        f"largest that fits into {limit:,.0f} MiB: --set training.tokens_per_batch={best.tokens}"
    )
