"""Draws what distinguishes the architectures: long sentences, and the alignment of words.

    python scripts/bench/architectures.py runs/multi30k_de_en_* --json architectures.json
    python scripts/draw_architectures.py architectures.json \\
        runs/multi30k_de_en_attentional_recurrent "ein hund läuft durch das gras ."

Left: BLEU by source length. Right: the attention of the run's translation of the sentence. Needs
matplotlib, which the extra `bench` installs.
"""

import json
import sys
from pathlib import Path
from typing import Any

import click
import matplotlib
from draw_readme import GRID, INK, MUTED, draw_attention
from matplotlib import pyplot

from keras_transformer import Run

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes"))
import before_transformers  # noqa: E402, F401


@click.command()
@click.argument("measurements", type=click.Path(path_type=Path))
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("sentence")
@click.option("--output", type=click.Path(path_type=Path), default=Path("docs/architectures.svg"))
def main(measurements: Path, run: Path, sentence: str, output: Path) -> None:
    """Draw BLEU by length from MEASUREMENTS, and RUN's attention for SENTENCE."""
    matplotlib.use("Agg")
    rows = json.loads(measurements.read_text(encoding="utf-8"))
    style = {"font.size": 12, "text.color": INK, "axes.labelcolor": INK, "svg.hashsalt": "drawn"}
    with pyplot.rc_context({**style, "xtick.color": MUTED, "ytick.color": MUTED}):
        figure = pyplot.figure(figsize=(11, 4.8), facecolor="white")
        draw_lengths(figure.add_axes((0.06, 0.13, 0.42, 0.8)), rows)
        draw_attention(figure.add_axes((0.62, 0.03, 0.36, 0.72)), Run.open(run), sentence)
        metadata = {"Date": None} if output.suffix == ".svg" else {}
        figure.savefig(output, dpi=100, metadata=metadata)


def draw_lengths(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Draws a line per architecture: the BLEU of each range of source lengths."""
    for row in rows:
        ranges = row["by_length"]
        label = row["architecture"].replace("_", " ")
        axes.plot(list(ranges), list(ranges.values()), marker="o", linewidth=2.2, label=label)
    axes.set(xlabel="words of the source", ylabel="BLEU", ylim=(0, None))
    axes.grid(axis="y", color=GRID)
    axes.spines[:].set_visible(False)
    axes.legend(frameon=False)


if __name__ == "__main__":
    main()
