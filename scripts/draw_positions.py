"""Draws the pictures of docs/explanation/positions.md.

    python scripts/draw_positions.py

Needs matplotlib, which the extra `bench` installs. The same versions give the same files.
"""

import sys
from pathlib import Path
from typing import Any

import click
import keras
import matplotlib
import numpy as np
from matplotlib import pyplot

from keras_transformer import TransformerSchedule
from keras_transformer.layers.positions.positional_encoding import POSITION_ENCODINGS

sys.path.insert(0, str(Path(__file__).parents[1] / "recipes"))
import ablation_layers  # noqa: E402, F401  registers three of the encodings

LENGTH, WIDTH, HEADS, POSITION = 64, 32, 4, 40
SIZES = {"max_length": LENGTH, "num_heads": HEADS}
ADDED = {
    "sinusoidal": "sinusoidal",
    "learned": "learned\n(before training)",
    "index": "index",
    "normalized_index": "normalized index",
    "binary": "binary digits",
}
INK, MUTED, BLUE, ORANGE = "#1d2b3a", "#5d6b7a", "#2b63ad", "#c2640c"
STYLE = {
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.titlesize": 12,
    "svg.hashsalt": "positions",
}


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=Path("docs/explanation"))
def main(output: Path) -> None:
    """Draw positions, their effect on attention scores, and learning-rate schedules."""
    matplotlib.use("Agg")
    keras.utils.set_random_seed(1)
    with pyplot.rc_context(STYLE):
        draw_added().savefig(output / "positions.png", dpi=110)
        draw_scores().savefig(output / "positions-scores.png", dpi=110)
        schedules = draw_schedules()
        schedules.savefig(output / "learning-rates.svg", metadata={"Date": None})


def encoding(name: str) -> np.ndarray:
    """Returns what a scheme adds to embeddings of zeros, float32 `(LENGTH, WIDTH)`."""
    layer = POSITION_ENCODINGS.new(name, **SIZES)
    zeros = np.zeros((1, LENGTH, WIDTH), "float32")
    return keras.ops.convert_to_numpy(layer(zeros))[0]


def draw_added() -> Any:
    """Draws the vectors of each scheme that adds vectors, and the similarity of the positions."""
    figure, rows = pyplot.subplots(
        len(ADDED), 3, figsize=(9.6, 13.2), layout="constrained", width_ratios=(1, 1, 1.15)
    )
    for (name, label), (matrix, similarity, line) in zip(ADDED.items(), rows, strict=True):
        vectors = encoding(name)
        products = vectors @ vectors.T
        most = np.abs(vectors).max()
        drawn = matrix.imshow(vectors, "RdBu", vmin=-most, vmax=most, aspect="auto")
        figure.colorbar(drawn, ax=matrix)
        matrix.set_ylabel(label, fontsize=12, fontweight="bold")
        figure.colorbar(similarity.imshow(products, "Blues", aspect="auto"), ax=similarity)
        line.plot(products[POSITION], color=BLUE, linewidth=1.8)
        line.axvline(POSITION, color=ORANGE, linewidth=1, linestyle="--")
        line.spines[["top", "right"]].set_visible(False)
    for axes, title in zip(
        rows[0],
        ("vectors", "dot products of positions", f"row of position {POSITION}"),
        strict=True,
    ):
        axes.set_title(title)
    for axes, text in zip(rows[-1], ("feature", "position", "position"), strict=True):
        axes.set_xlabel(text)
    return figure


def draw_scores() -> Any:
    """Draws how rotary positions and ALiBi change the attention scores of equal tokens."""
    figure, axes = pyplot.subplots(1, 3, figsize=(9.6, 3.3), layout="constrained")
    rotary = POSITION_ENCODINGS.new("rotary", **SIZES)
    equal = np.ones((1, LENGTH, WIDTH), "float32")
    rotated = keras.ops.convert_to_numpy(rotary.rotate(equal))[0]
    scores = rotated @ rotated.T / np.sqrt(WIDTH)
    distance = np.arange(LENGTH)[:, None] - np.arange(LENGTH)
    alibi = POSITION_ENCODINGS.new("alibi", **SIZES)
    biases = keras.ops.convert_to_numpy(alibi.score_bias(keras.ops.convert_to_tensor(distance)))
    for panel, values, title in (
        (axes[0], scores, "rotary: score of equal tokens"),
        (axes[1], biases[0], "ALiBi: bias of head 1"),
    ):
        figure.colorbar(panel.imshow(values, "Blues"), ax=panel)
        panel.set(title=title, xlabel="key position", ylabel="query position")
    for head in range(HEADS):
        axes[2].plot(distance[POSITION], biases[head, POSITION], color=BLUE, alpha=1 - 0.2 * head)
    relative = scores[POSITION] - scores[POSITION, POSITION]
    axes[2].plot(distance[POSITION], relative, color=ORANGE, label="rotary, minus its maximum")
    axes[2].plot([], [], color=BLUE, label=f"ALiBi, heads 1 to {HEADS}")
    axes[2].set(title=f"query at position {POSITION}", xlabel="query minus key position")
    axes[2].legend(frameon=False, fontsize=9, loc="lower center")
    axes[2].spines[["top", "right"]].set_visible(False)
    return figure


def draw_schedules() -> Any:
    """Draws the learning rate of each optimizer step for several models and warm-ups."""
    figure, axes = pyplot.subplots(figsize=(7.2, 3.4), layout="constrained")
    steps = np.arange(1, 20_002, 100)
    for d_model, colour in ((128, ORANGE), (512, BLUE), (1024, INK)):
        for warmup_steps, dashes in ((4000, "-"), (8000, "--")):
            schedule = TransformerSchedule(d_model=d_model, warmup_steps=warmup_steps)
            rates = [float(keras.ops.convert_to_numpy(schedule(step))) for step in steps]
            label = f"d_model {d_model:,}, warm-up {warmup_steps:,} steps"
            axes.plot(steps, rates, color=colour, linestyle=dashes, label=label, linewidth=1.8)
    axes.set(xlabel="optimizer step", ylabel="learning rate", xlim=(0, None), ylim=(0, None))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e3e8ee")
    return figure


if __name__ == "__main__":
    main()
