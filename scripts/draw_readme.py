"""Draws the picture of README.md: the flow of the data, the course of a training, and attention.

    python scripts/draw_readme.py runs/my_translator "Today I read an interesting book."

Needs matplotlib, which the extra `bench` installs. The run must be finished. The translation of the
sentence must be good, so look at the picture before you commit it.
"""

from pathlib import Path
from typing import Any

import click
import keras
import matplotlib
import numpy as np
from matplotlib import pyplot
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import MaxNLocator

from keras_transformer import Run
from keras_transformer.formats.engines import open_translator
from keras_transformer.runs.checkpoints import logged_scalars

INK, MUTED, GRID = "#1d2b3a", "#5d6b7a", "#e3e8ee"
# Edge and fill of the boxes.
DATA, TRAINING, RESULT = ("#3b6fb6", "#eaf1fb"), ("#d97b1c", "#fdf0e1"), ("#2f8f5b", "#e8f5ed")

STAGES = (
    ("text", "two languages", DATA),
    ("tokenizer", "SentencePiece", DATA),
    ("batches", "token budget", DATA),
    ("model.fit", "3 backends", TRAINING),
    ("run folder", "model, scores", TRAINING),
)
RESULTS = (
    ("translate", "command, Python", RESULT),
    ("SavedModel", "TF Serving", RESULT),
    ("CTranslate2", "fast on CPUs", RESULT),
    ("ONNX", "ONNX Runtime", RESULT),
)


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("sentence")
@click.option("--output", type=click.Path(path_type=Path), default=Path("docs/picture.svg"))
def main(run: Path, sentence: str, output: Path) -> None:
    """Draw the picture of README.md from RUN, with the attention in the translation of SENTENCE."""
    matplotlib.use("Agg")
    # The same run gives the same file.
    style = {"font.size": 13, "text.color": INK, "axes.labelcolor": INK, "svg.hashsalt": "readme"}
    with pyplot.rc_context({**style, "xtick.color": MUTED, "ytick.color": MUTED}):
        figure = pyplot.figure(figsize=(9, 8.4), facecolor="white")
        draw_flow(figure.add_axes((0.01, 0.635, 0.98, 0.36)))
        title = {"fontsize": 16, "fontweight": "bold", "horizontalalignment": "center"}
        figure.text(0.245, 0.555, "Training", **title)
        draw_training(figure.add_axes((0.075, 0.075, 0.34, 0.445)), Run.open(run))
        figure.text(0.78, 0.555, "Attention", **title)
        draw_attention(figure.add_axes((0.62, 0.01, 0.37, 0.4)), Run.open(run), sentence)
        figure.savefig(output, dpi=100, metadata={"Date": None} if output.suffix == ".svg" else {})


def draw_flow(axes: Any) -> None:
    """Draws the stages from left to right, and below them what a run can become."""
    axes.set(xlim=(0, 100), ylim=(0, 36))
    axes.axis("off")
    stages = _boxes(axes, STAGES, width=16, bottom=22)
    for left, right in zip(stages, stages[1:], strict=False):
        _arrow(axes, (left + 8, 28), (right - 8, 28))
    results = _boxes(axes, RESULTS, width=20, bottom=1)
    axes.plot([results[-1], results[-1], results[0]], [22, 17.5, 17.5], color=MUTED, linewidth=1.6)
    for center in results:
        _arrow(axes, (center, 17.5), (center, 13))


def _boxes(axes: Any, boxes: Any, width: float, bottom: float) -> list[float]:
    """Draws boxes of 12 units height in a row. Returns their centers."""
    gap = (100 - 1 - len(boxes) * width) / (len(boxes) - 1)
    centers = [0.5 + width / 2 + i * (width + gap) for i in range(len(boxes))]
    for center, (title, text, (edge, fill)) in zip(centers, boxes, strict=True):
        corner, shape = (center - width / 2, bottom), "round,pad=0,rounding_size=1.6"
        box = FancyBboxPatch(
            corner, width, 12, shape, edgecolor=edge, facecolor=fill, linewidth=1.8
        )
        axes.add_patch(box)
        middle = {"horizontalalignment": "center", "verticalalignment": "center"}
        axes.text(center, bottom + 7.8, title, fontsize=16, fontweight="bold", **middle)
        axes.text(center, bottom + 3.4, text, fontsize=12.5, color=MUTED, **middle)
    return centers


def _arrow(axes: Any, begin: tuple[float, float], end: tuple[float, float]) -> None:
    style = {"arrowstyle": "-|>", "color": MUTED, "linewidth": 1.6, "mutation_scale": 15}
    axes.annotate("", end, begin, arrowprops={**style, "shrinkA": 0, "shrinkB": 0})


def draw_training(axes: Any, run: Run) -> None:
    """Draws BLEU and loss of the validation from the run's TensorBoard logs."""
    logs = logged_scalars(run.logs_dir, "validation/")
    axes.set_xlabel("optimizer step")
    axes.grid(axis="y", color=GRID)
    parts = (
        ("bleu", "validation BLEU", DATA[0], axes),
        ("loss", "validation loss", TRAINING[0], axes.twinx()),
    )
    for name, label, color, panel in parts:
        points = logs[f"validation/{name}"]
        panel.plot(list(points), list(points.values()), color=color, linewidth=2.6)
        panel.tick_params(axis="y", colors=color, length=0)
        panel.set(ylim=(0, None), xlim=(0, None))
        panel.set_ylabel(label, color=color, fontsize=15)
        panel.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        panel.spines[:].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.spines["bottom"].set(visible=True, color=MUTED)


def draw_attention(axes: Any, run: Run, sentence: str) -> None:
    """Draws the attention of each token of the translation to the tokens of the sentence."""
    source, target, weights = attention_of(run, sentence)
    axes.pcolormesh(weights, cmap="Blues", edgecolors="white", linewidth=1, vmin=0, vmax=1)
    axes.invert_yaxis()
    axes.xaxis.tick_top()
    axes.set_xticks(
        np.arange(len(source)) + 0.5, source, rotation=60, rotation_mode="anchor", ha="left"
    )
    axes.set_yticks(np.arange(len(target)) + 0.5, target)
    axes.tick_params(length=0, colors=INK)
    axes.spines[:].set_visible(False)


def attention_of(run: Run, sentence: str) -> tuple[list[str], list[str], np.ndarray]:
    """Translates a sentence. Returns the tokens of both and the weights `(target, source)`."""
    translator, tokenizer = open_translator(run), run.tokenizer()
    ((hypothesis,),) = translator.translate_nbest([sentence])
    (source_ids,), target_ids = tokenizer.encode_source([sentence]), hypothesis.ids
    source_input = np.array([tokenizer.frame_source(source_ids)])
    target_input = np.array([[tokenizer.frame_target(target_ids)[0]]])
    attention = translator.model.source_attention(source_input, target_input)
    weights = keras.ops.convert_to_numpy(attention)[0, 0]
    source = _shown([tokenizer.source_pieces[id] for id in source_ids])
    target = _shown([tokenizer.target_pieces[id] for id in target_ids])
    return source, target, weights[: len(target), : len(source)]


def _shown(pieces: list[str]) -> list[str]:
    """Puts a dot before each piece that continues a word."""
    return [x.lstrip("▁") if x[0] == "▁" or not x[0].isalpha() else f"·{x}" for x in pieces]


if __name__ == "__main__":
    main()
