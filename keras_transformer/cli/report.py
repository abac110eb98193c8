"""The command `report`."""

from pathlib import Path

import click

from keras_transformer._files import output_file
from keras_transformer.cli.common import (
    backend_option,
    run_argument,
    run_folder,
)


@click.command("report")
@run_argument
@click.argument("other", metavar="[OTHER_RUN]", type=run_folder, required=False)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("report.html"),
    help="The HTML file. Default: report.html in the current folder. The file is written only if "
    "the command succeeds.",
)
@backend_option
def command(run: Path, other: Path | None, output: Path) -> None:
    """Write one HTML page about RUN.

    With OTHER_RUN, the page is about the difference between the two runs. The page has the recipe,
    curves, scores, the best and worst sentences, and attention. It opens from a file, without a
    network. What RUN lacks is named there, with the command that makes it.

    \b
    keras-transformer report runs/quickstart
    keras-transformer report runs/a runs/b --output difference.html
    """
    from keras_transformer.runs.run import Run

    runs = [Run.open(folder) for folder in (run, other) if folder is not None]
    with output_file(output) as file:
        from keras_transformer.visualization.report import run_report

        file.write(run_report(*runs))
    click.echo(str(output))
