#!/usr/bin/env python
"""What attention costs against the length, in memory and in time, and what its scale is for.

`memory`: one training step of one layer (d_model 256, 4 heads, one sequence) on 2 CPU threads, a
fresh process for each figure: the megabytes that the second step adds at its peak to what is there
before it, and the seconds of the third. `dense`, `full`, `local` (window 128), `strided` (stride
128) and `fixed` (blocks of 128) are this package's `MultiHeadAttention`, the first without an
`attention_pattern`. With `--causal`, all layers have a causal mask.

`time`: the same training step with memory kept between steps, the layers in turn in one process:
milliseconds, median of the repeats, and the median of their ratios to `dense` in the same round.

`layers`: Table 1 of the paper, the forward pass of one layer (d_model 128, one sequence) compiled:
milliseconds, median of the repeats; sequential operations; and the longest path between two
positions of the longest sequence, from how far the effect of one changed position was seen.

`scores`: variance of the scores of random queries and keys, and saturation of the softmax over 64
of them, against d_k, scaled and unscaled.

An exponent is that of a power of the length, fitted to the longer half of the lengths.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _attention_layers
import _attention_scores
import _attention_time
from _attention_memory import MODULES, measure_memory, modules
from _common import Worker, limit_threads, serve, table, write_json
from tqdm import tqdm

BACKENDS = ("tensorflow", "jax", "torch")
PARTS = ("memory", "time", "layers", "scores")
WIDTHS = (4, 16, 64, 256, 1024)
EXAMPLES = """examples:
  scripts/bench/attention.py --plot attention.png --json attention.json
  scripts/bench/attention.py --parts memory --backends torch --lengths 1024 2048 4096
  scripts/bench/attention.py --parts memory time --causal --modules dense strided fixed
"""


def measure(arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Rows by part."""
    rows: dict[str, list[dict[str, Any]]] = {}
    if "memory" in arguments.parts:
        rows["memory"] = measure_memory(
            modules(arguments.backends, arguments.modules),
            arguments.lengths,
            arguments.longest_dense,
            arguments.causal,
        )
    if "time" in arguments.parts:
        rows["time"] = [
            row for backend in arguments.backends for row in _measure_time(backend, arguments)
        ]
    backend = arguments.backends[0]
    if "layers" in arguments.parts:
        with _worker("layers", backend) as worker, tqdm(desc="layers", unit="length") as progress:

            def show(name: str) -> None:
                progress.set_postfix_str(name)
                progress.update()

            rows["layers"] = _attention_layers.measure_layers(
                worker, arguments.layer_lengths, arguments.repeats, show
            )
    if "scores" in arguments.parts:
        with _worker("scores", backend) as worker:
            rows["scores"] = _attention_scores.measure_scores(worker, WIDTHS)
    return rows


def _measure_time(backend: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    names = [module.name for module in modules([backend], arguments.modules)]
    lengths = [n for n in arguments.lengths if n <= arguments.longest_dense]
    settings = (names, lengths, arguments.causal, arguments.repeats)
    with _worker("time", backend) as worker, tqdm(desc="time", unit="length") as progress:

        def show(name: str) -> None:
            progress.set_postfix_str(name)
            progress.update()

        return _attention_time.measure_time(worker, backend, *settings, show)


def _worker(part: str, backend: str) -> Worker:
    return Worker(Path(__file__), "worker", part, KERAS_BACKEND=backend)


def formats(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """All columns are numbers but the names."""
    names = {"module", "backend", "layer", "scaled"}
    return {key: "," for key in rows[0] if key not in names}


def plot(rows: dict[str, list[dict[str, Any]]], path: Path) -> None:
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(rows), figsize=(6 * len(rows), 4.5), squeeze=False)
    draw = {
        "memory": _plot_memory,
        "time": _plot_time,
        "layers": _plot_layers,
        "scores": _plot_scores,
    }
    for (part, own), panel in zip(rows.items(), panels[0], strict=True):
        draw[part](own, panel)
        panel.set_xscale("log", base=2)
        panel.legend(fontsize="x-small")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _curve(row: dict[str, Any], prefix: str) -> tuple[list[int], list[float]]:
    keys = [k for k in row if k.removeprefix(prefix).isdigit() and row[k] is not None]
    return [int(key.removeprefix(prefix)) for key in keys], [row[key] for key in keys]


def _plot_memory(rows: Sequence[dict[str, Any]], panel: Any) -> None:
    _plot_steps(rows, panel, "mb", "MB at the peak")


def _plot_time(rows: Sequence[dict[str, Any]], panel: Any) -> None:
    _plot_steps(rows, panel, "ms", "milliseconds")


def _plot_steps(rows: Sequence[dict[str, Any]], panel: Any, unit: str, name: str) -> None:
    styles = {"tensorflow": "-", "jax": "--", "torch": ":"}
    for row in rows:
        label = f"{row['module']} {row['backend']}: {row[f'{unit}_exponent']}"
        panel.plot(*_curve(row, f"{unit}_"), styles[row["backend"]], marker="o", ms=3, label=label)
    panel.set_yscale("log")
    panel.set(title="training step of one layer", xlabel="length", ylabel=name)


def _plot_layers(rows: Sequence[dict[str, Any]], panel: Any) -> None:
    for row in rows:
        label = f"{row['layer']}: {row['exponent']}"
        panel.plot(*_curve(row, "ms_"), marker="o", ms=3, label=label)
    panel.set_yscale("log")
    panel.set(title="forward pass of one layer", xlabel="length", ylabel="milliseconds")


def _plot_scores(rows: Sequence[dict[str, Any]], panel: Any) -> None:
    for scaled in ("False", "True"):
        own = [row for row in rows if row["scaled"] == scaled]
        widths = [row["d_k"] for row in own]
        for name in ("largest_weight", "derivative"):
            label = f"{name.replace('_', ' ')}, {'scaled' if scaled == 'True' else 'unscaled'}"
            panel.plot(widths, [row[name] for row in own], marker="o", ms=3, label=label)
    panel.set(title="softmax over 64 keys", xlabel="d_k", ylim=(0, 1))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--backends",
        nargs="+",
        choices=BACKENDS,
        default=["jax", "tensorflow", "torch"],
        help="of memory and time; the first is that of the other parts; default: jax and others",
    )
    parser.add_argument(
        "--modules",
        nargs="+",
        choices=MODULES,
        default=list(MODULES),
        help="layers of memory and time; default: all",
    )
    parser.add_argument("--causal", action="store_true", help="memory and time with causal masks")
    parser.add_argument("--lengths", nargs="+", type=int, default=[2048, 4096, 8192, 16384])
    parser.add_argument(
        "--longest-dense", type=int, default=8192, help="where all scores are held; default: 8192"
    )
    parser.add_argument(
        "--layer-lengths", nargs="+", type=int, default=[128, 256, 512, 1024, 2048, 4096]
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--plot", type=Path, help="PNG or SVG file; needs matplotlib")
    parser.add_argument("--json", type=Path, help="file for the rows of all parts")
    return parser.parse_args()


def main() -> None:
    if sys.argv[1:2] == ["worker"]:
        parts = {
            "layers": _attention_layers.work,
            "scores": _attention_scores.work,
            "time": _attention_time.work,
        }
        serve(parts[sys.argv[2]])
        return
    arguments = parse_arguments()
    if arguments.plot:
        import matplotlib

        matplotlib.use("Agg")
    limit_threads()
    rows = measure(arguments)
    for own in rows.values():
        print(f"\n{table(own, formats(own))}")
    if arguments.plot:
        plot(rows, arguments.plot)
    if arguments.json:
        write_json(arguments.json, [{"part": part, **row} for part in rows for row in rows[part]])


if __name__ == "__main__":
    main()
