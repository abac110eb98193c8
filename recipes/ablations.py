"""Ablations of the Transformer on Multi30k English-German, after Table 3 of the paper (§6.2).

Each row of the table is a model that differs from `base` in one setting. `base` is the model of
`multi30k_en_de.yaml` with a smaller vocabulary, less dropout and far fewer steps. A row is a run
folder. A row that is finished is not trained again, and a row that was interrupted continues.

command:  KERAS_BACKEND=torch python recipes/ablations.py --plot runs/ablations/ablations.png
          With `--rows NAME ...`, two commands can train different rows at the same time.
          On a GPU: python recipes/ablations.py --rows base r_drop simcut both_directions \\
              --steps 11500 --set training.tokens_per_batch=4096 --budget-seconds 600
hardware: 2 CPU cores
time:     6 to 8 minutes per row on one core; about 80 minutes for 22 rows with two commands
steps:    1,500 of 1,024 target tokens per row
score:    validation BLEU of greedy search, one training per row: base 27.06, one head 26.45, rotary
          positions 29.50, no positions 20.85; all rows are in docs/explanation/architectures.md

The option --plot needs matplotlib. The backend PyTorch is the fastest on CPUs with bfloat16.
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ablation_layers  # noqa: F401  registers the positions of some rows
import keras

from keras_transformer import Recipe, Run, Scorer, UserError, load_recipe, train
from keras_transformer.evaluation import evaluate_run
from keras_transformer.translation.open_run import open_model

# 1. The rows. The letters are those of Table 3. The settings are keys of a recipe.

BASE = [
    "tokenizer.vocabulary_size=4000",
    "model.dropout_rate=0.1",
    "training.tokens_per_batch=1024",
    "training.warmup_steps=200",
    "training.peak_learning_rate=0.003",
    "training.dtype_policy=mixed_bfloat16",
    "training.keep_checkpoints=3",
    "training.validation_bleu_sentences=0",
    "evaluation.average_last=3",
    "evaluation.beam_size=1",
]

ROWS = {
    "base": [],  # 4 heads with d_k = 32
    # (A) The number of heads. d_k is 128 / heads.
    "heads_1": ["model.num_heads=1"],
    "heads_2": ["model.num_heads=2"],
    "heads_8": ["model.num_heads=8"],
    # (B) The width of queries and keys alone.
    "d_k_4": ["model.d_k=4"],
    "d_k_8": ["model.d_k=8"],
    "d_k_16": ["model.d_k=16"],
    # (D) Dropout and label smoothing.
    "dropout_0": ["model.dropout_rate=0.0"],
    "dropout_0.2": ["model.dropout_rate=0.2"],
    "dropout_0.3": ["model.dropout_rate=0.3"],
    "label_smoothing_0": ["training.label_smoothing=0.0"],
    "label_smoothing_0.2": ["training.label_smoothing=0.2"],
    # (E) Position encodings.
    "learned": ["model.position_encoding=learned"],
    "rotary": ["model.position_encoding=rotary"],
    "alibi": ["model.position_encoding=alibi"],
    "index": ["model.position_encoding=index"],
    "normalized_index": ["model.position_encoding=normalized_index"],
    "binary": ["model.position_encoding=binary"],
    "no_positions": ["model.position_encoding=none"],
    # What the paper argues for in §3.2.1 and §3.1, but does not vary.
    "unscaled": ["model.use_scale=false"],
    "batch_normalization": ["model.normalization=batch"],
    "post_norm": ["model.norm_first=false"],
    # Later regularization: AdamW, R-Drop, and SimCut with training in both directions (Bi-SimCut).
    "weight_decay": ["training.weight_decay=0.05"],
    "r_drop": ["training.r_drop=3.0"],
    "simcut": ["training.simcut=1.0"],
    "both_directions": ["data.both_directions=true"],
    "bi_simcut": ["data.both_directions=true", "training.simcut=1.0"],
}


def recipe_of(name: str, steps: int, settings: Sequence[str]) -> Recipe:
    """Returns the recipe of a row. `settings` apply to all rows."""
    schedule = [f"training.steps={steps}", f"training.checkpoint_every={max(1, steps // 10)}"]
    changes = [f"name={name}", *BASE, *schedule, *settings, *ROWS[name]]
    return load_recipe(Path(__file__).with_name("multi30k_en_de.yaml"), changes)


# 2. One row: train, then score the mean of the last three checkpoints on the validation text.


def train_row(folder: Path, recipe: Recipe) -> dict[str, Any]:
    """Trains and scores one row, or returns its result if it is finished."""
    steps, result_path = recipe.training.steps, folder / "ablation.json"
    if result_path.exists():
        result: dict[str, Any] = json.loads(result_path.read_text())
        changed = Run.open(folder).recipe.differences(recipe).keys() - {"data.directory"}
        if result["steps"] == steps and not changed:
            return result
    is_begun = (folder / "recipe.yaml").exists()
    run = (Run.resume if is_begun else Run.create)(folder, recipe)
    is_whole = not run.checkpoints()  # otherwise, this process would not measure the whole time
    keras.utils.clear_session()
    start = time.monotonic()
    train(run, resume=is_begun)
    minutes = (time.monotonic() - start) / 60
    result = {
        "row": recipe.name,
        "setting": ", ".join(x.partition(".")[2].replace("=", " ") for x in ROWS[recipe.name]),
        "steps": steps,
        **score(run),
        "minutes": minutes if is_whole else None,
    }
    partial = result_path.with_suffix(".partial")
    partial.write_text(json.dumps(result) + "\n")
    partial.replace(result_path)
    return result


def score(run: Run) -> dict[str, Any]:
    """Returns the number of trained weights, the perplexity per token, and BLEU."""
    model = open_model(run)
    sources, references = zip(*run.text.pairs("validation"), strict=True)
    pairs = Scorer(model, run.tokenizer()).score(sources, references)
    nats = -sum(pair.log_probability for pair in pairs) / sum(pair.length for pair in pairs)
    bleu, *_ = evaluate_run(run, split="validation").scores
    return {
        "parameters": sum(math.prod(weight.shape) for weight in model.trainable_weights),
        "perplexity": math.exp(nats),
        "bleu": bleu.score,
    }


# 3. The table and the plot.


def table(results: Sequence[dict[str, Any]]) -> str:
    """Returns the results as a Markdown table."""
    lines = [
        "| row | setting | parameters | perplexity | BLEU | minutes |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for x in results:
        minutes = "" if x["minutes"] is None else f"{x['minutes']:.1f}"
        numbers = f"{x['parameters']:,} | {x['perplexity']:.2f} | {x['bleu']:.2f} | {minutes}"
        lines.append(f"| {x['row']} | {x['setting']} | {numbers} |")
    return "\n".join(lines)


def draw(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws the BLEU of each row, and the BLEU of `base` as a line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 1 + 0.28 * len(results)))
    names, scores = [x["row"] for x in results], [x["bleu"] for x in results]
    axes.bar_label(axes.barh(names, scores, color="#8fb3e0"), fmt="%.1f", padding=-28)
    if "base" in names:
        axes.axvline(scores[names.index("base")], color="#1d2b3a", linestyle="--", linewidth=1)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(xlabel="validation BLEU", xlim=(0, 1.1 * max(*scores, 1)))
    figure.tight_layout()
    figure.savefig(path, dpi=120)


# 4. The command.


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options of the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows",
        nargs="+",
        choices=ROWS,
        default=list(ROWS),
        metavar="NAME",
        help=f"rows to train, of {', '.join(ROWS)}; default: all",
    )
    parser.add_argument("--steps", type=int, default=1500, help="optimizer steps per row")
    parser.add_argument(
        "--budget-seconds", type=float, default=math.inf, help="begin no row after this time"
    )
    parser.add_argument("--data-dir", type=Path, help="folder of the text; default: download")
    parser.add_argument("--runs", type=Path, default=Path("runs/ablations"), help="folder of runs")
    parser.add_argument("--plot", type=Path, help="file of the plot; needs matplotlib")
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="setting of all rows, as in a recipe",
    )
    return parser.parse_args(arguments)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains the rows one after the other, then prints the table of all finished rows."""
    options = parse_arguments(arguments)
    if options.plot and not find_spec("matplotlib"):
        raise SystemExit("--plot needs matplotlib: pip install matplotlib")
    settings = options.settings
    if options.data_dir:
        settings.append(f"data.directory={json.dumps(str(options.data_dir.resolve()))}")
    recipes = {name: recipe_of(name, options.steps, settings) for name in options.rows}
    start = time.monotonic()
    for name, recipe in recipes.items():
        if time.monotonic() - start > options.budget_seconds:
            print(f"No time is left for {name}. The same command goes on with it.")
            continue
        print(table([train_row(options.runs / name, recipe)]), flush=True)
    # Other commands may have trained other rows.
    paths = [options.runs / name / "ablation.json" for name in ROWS]
    results = [json.loads(path.read_text()) for path in paths if path.exists()]
    results = [result for result in results if result["steps"] == options.steps]
    (options.runs / "ablations.json").write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))
    if options.plot:
        draw(results, options.plot)


if __name__ == "__main__":
    try:
        main()
    except (UserError, OSError) as error:
        raise SystemExit(f"Error: {error}") from None
