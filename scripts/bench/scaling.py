#!/usr/bin/env python
"""How training would scale over accelerators that are not here: on paper, and by simulation.

On paper: compute is the operations of a step's matrix products over what a device sustains;
gradients are summed by rings, within each node and then between the nodes; split weights add the
sums that the layers need within a node; and each replica updates all its weights, at the rate of
its memory: replicas do not divide that, as `two_devices.py` measures. The simulation passes every
message of every ring, each accelerator being a little faster or slower in each step than on paper.
It is made twice: with one message after the backward pass, as on PyTorch here, and with messages
that leave during it.

The defaults are DGX H100 nodes. Their rates are those of NVIDIA's data sheet: 989 TFLOP/s bfloat16
without sparsity; memory 3.35 TB/s; NVLink 900 GB/s, half of it each way; 400 Gb/s InfiniBand for
each device. The latency of a message of a ring is what NCCL assumes in its tuning model
(src/graph/tuning.cc, ring, simple: 3.4 and 14 microseconds). That a device sustains 40 % of its
rate and that its steps vary by 2 % are assumptions. Nothing here was measured on such a machine.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _common import table, write_json
from _training_engines import Case
from tqdm import tqdm

from keras_transformer.models import ARCHITECTURES

ACCELERATORS = [8, 16, 32, 64, 128, 256, 512, 1024]
VOCABULARY = 37_000
LENGTH = 32
FORMATS = {
    "accelerators": ",d",
    "split": "d",
    "batch_tokens": ",d",
    "compute_ms": ".2f",
    "gradients_ms": ".2f",
    "layers_ms": ".2f",
    "update_ms": ".2f",
    "step_ms": ".2f",
    "overlapped_ms": ".2f",
    "efficiency": ".2f",
    "tokens_per_s": ",.0f",
}
EXAMPLES = """examples:
  scripts/bench/scaling.py --plot scaling.png --json scaling.json
  scripts/bench/scaling.py --batch-tokens 400000
"""


@dataclass(frozen=True)
class Machine:
    """Nodes of accelerators. Rates are operations and bytes a second, each way; times seconds."""

    flops: float
    utilization: float
    node_size: int
    node_bandwidth: float
    node_latency: float
    network_bandwidth: float
    network_latency: float
    memory_bandwidth: float

    def compute_seconds(self, case: Case, split: int) -> float:
        """A step of a replica whose weights are split over that many accelerators."""
        return case.flops / split / (self.flops * self.utilization)

    def update_seconds(self, weights: float) -> float:
        """Adam reads weights, gradients and two moments, and writes all but gradients; float32."""
        return 7 * 4.0 * weights / self.memory_bandwidth


@dataclass(frozen=True)
class Layout:
    """Replicas of the model, and the accelerators that each is split over, within a node."""

    replicas: int
    split: int
    node_size: int

    @property
    def in_node(self) -> int:
        """Replicas in a node."""
        return min(self.replicas, self.node_size // self.split)

    @property
    def nodes(self) -> int:
        return self.replicas // self.in_node


def case_of(preset: str, target_tokens: int) -> Case:
    """A model and the batch of one replica, of as many source as target tokens."""
    published = ARCHITECTURES["transformer"].presets[preset]
    sizes = {name: published[name] for name in ("num_layers", "d_model", "num_heads", "d_ff")}
    rows = max(1, round(target_tokens / LENGTH))
    return Case(preset, **sizes, vocabulary_size=VOCABULARY, batch_size=rows,
                source_length=LENGTH, target_length=LENGTH)  # fmt: skip


def parameters(case: Case) -> int:
    """Weights with biases and norms; one matrix for all embeddings."""
    d, d_ff = case.d_model, case.d_ff
    attention, feed_forward, norm = 4 * (d * d + d), 2 * d * d_ff + d_ff + d, 2 * d
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    return case.num_layers * (encoder_layer + decoder_layer) + case.vocabulary_size * d


def ring_seconds(size: float, members: int, bandwidth: float, latency: float) -> float:
    """All-reduce of `size` bytes: 2 (n - 1) messages of the n-th part.

    Source: Patarasuk and Yuan 2009, Bandwidth Optimal All-reduce Algorithms.
    """
    return 2 * (members - 1) * (size / members / bandwidth + latency)


def gradient_seconds(size: float, machine: Machine, layout: Layout) -> float:
    """Sum of gradients: scattered over the node, summed between nodes, gathered in the node."""
    within = ring_seconds(size, layout.in_node, machine.node_bandwidth, machine.node_latency)
    return within + ring_seconds(
        size / layout.in_node, layout.nodes, machine.network_bandwidth, machine.network_latency
    )


def layer_sums(case: Case) -> list[tuple[int, float]]:
    """What split layers sum up in a step, as (how many sums, bytes of each); bfloat16.

    Forward each sublayer's output, backward the gradient of its input; those of cross-attention
    are two. Beside the layers, both embeddings, the gradient of the decoder's output, and for each
    slice of the logits, which has D tokens, the largest and the normalizer (float32).
    """
    source = 2.0 * case.batch_size * case.source_length * case.d_model
    target = 2.0 * case.target_tokens * case.d_model
    layers = case.num_layers
    slices = -(-case.target_tokens // case.d_model)
    return [
        ((2 + 2 + 1) * layers + 1, source),
        ((3 + 3) * layers + 2, target),
        (2 * slices, 4.0 * case.d_model),
    ]


def layer_seconds(case: Case, machine: Machine, split: int) -> float:
    return sum(
        count * ring_seconds(size, split, machine.node_bandwidth, machine.node_latency)
        for count, size in layer_sums(case)
    )


def simulate(
    compute: np.ndarray, size: float, messages: int, machine: Machine, layout: Layout
) -> float:
    """Seconds of a step in which replicas compute and then, or meanwhile, sum their gradients.

    Args:
        compute: seconds that each replica computes, (nodes, in_node).
        size: bytes of the gradient of a replica's accelerator.
        messages: equal parts of the gradient, which are ready one after the other during the
            backward pass, that is in the last two thirds of `compute`. 1: all at its end.
        machine: the accelerators and their links.
        layout: what of it the replicas are.
    """
    done = np.zeros_like(compute)
    for message in range(1, messages + 1):
        ready = compute * (1 + 2 * message / messages) / 3
        done = _all_reduce(np.maximum(done, ready), size / messages, machine, layout)
    return float(done.max())


def _all_reduce(begin: np.ndarray, size: float, machine: Machine, layout: Layout) -> np.ndarray:
    """When each replica has the sum, if it begins at `begin`, (nodes, in_node)."""
    in_node = size / layout.in_node / machine.node_bandwidth + machine.node_latency
    between = size / layout.in_node / layout.nodes / machine.network_bandwidth
    between += machine.network_latency
    scattered = _pass_around(begin, layout.in_node - 1, in_node, axis=1)
    summed = _pass_around(scattered, 2 * (layout.nodes - 1), between, axis=0)
    return _pass_around(summed, layout.in_node - 1, in_node, axis=1)


def _pass_around(begin: np.ndarray, messages: int, seconds: float, axis: int) -> np.ndarray:
    """Rings along an axis: each member waits for its neighbour's message before the next one."""
    for _ in range(messages):
        begin = np.maximum(begin, np.roll(begin, 1, axis)) + seconds
    return begin


def row(preset: str, accelerators: int, split: int, tokens: int, machine: Machine,
        options: argparse.Namespace) -> dict[str, Any]:  # fmt: skip
    layout = Layout(accelerators // split, split, machine.node_size)
    case = case_of(preset, tokens // layout.replicas)
    batch_tokens = case.target_tokens * layout.replicas
    size = 4.0 * parameters(case) / split
    compute = machine.compute_seconds(case, split)
    layers = layer_seconds(case, machine, split)
    update = machine.update_seconds(parameters(case) / split)
    messages = max(1, round(size / options.message_bytes))
    rng = np.random.default_rng(options.seed)
    shape = (options.steps, layout.nodes, layout.in_node)
    # Of the accelerators that a replica is split over, the slowest decides.
    factors = np.exp(options.variation * rng.standard_normal((*shape, split)).max(-1))
    steps = compute * factors + layers
    alone, overlapped = (
        update + float(np.mean([simulate(step, size, count, machine, layout) for step in steps]))
        for count in (1, messages)
    )
    return {
        "preset": preset,
        "accelerators": accelerators,
        "split": split,
        "batch_tokens": batch_tokens,
        "compute_ms": 1e3 * compute,
        "gradients_ms": 1e3 * gradient_seconds(size, machine, layout),
        "layers_ms": 1e3 * layers,
        "update_ms": 1e3 * update,
        "step_ms": 1e3 * alone,
        "overlapped_ms": 1e3 * overlapped,
        "efficiency": compute / overlapped,
        "tokens_per_s": batch_tokens / overlapped,
    }


def plot(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for preset, split in sorted({(each["preset"], each["split"]) for each in rows}):
        mine = [each for each in rows if (each["preset"], each["split"]) == (preset, split)]
        label = f"{preset}, split over {split}" if split > 1 else preset
        counts = [each["accelerators"] for each in mine]
        (line,) = axes.plot(counts, [each["efficiency"] for each in mine], "o-", label=label)
        after = [each["compute_ms"] / each["step_ms"] for each in mine]
        axes.plot(counts, after, ":", color=line.get_color())
    axes.set(
        xscale="log", xlabel="accelerators", ylabel="share of a step that is compute",
        ylim=(0, 1.02), title="Simulated; dotted: gradients summed after the backward pass",
    )  # fmt: skip
    axes.set_xticks(ACCELERATORS, [str(count) for count in ACCELERATORS])
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150, bbox_inches="tight")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--tokens", type=int, default=25_000, help="target tokens per accelerator; default: 25000")
    add("--batch-tokens", type=int, help="target tokens of all together, instead of --tokens")
    add("--split", type=int, nargs="+", default=[1, 8], help="model shards; default: 1 8")
    add("--flops", type=float, default=989e12, help="of a device, FLOP/s; default: 989e12")
    add("--utilization", type=float, default=0.4, help="share sustained; default: 0.4")
    add("--node-size", type=int, default=8, help="devices of a node; default: 8")
    add("--node-bandwidth", type=float, default=450e9, help="bytes/s; default: 450e9")
    add("--node-latency", type=float, default=3.4e-6, help="s a message; default: 3.4e-6")
    add("--network-bandwidth", type=float, default=50e9, help="bytes/s a device; default: 50e9")
    add("--network-latency", type=float, default=14e-6, help="s a message; default: 14e-6")
    add("--memory-bandwidth", type=float, default=3.35e12, help="bytes/s; default: 3.35e12")
    add("--variation", type=float, default=0.02, help="of a device's steps; default: 0.02")
    add("--message-bytes", type=float, default=25 * 2**20, help="overlapped; default: 25 MiB")
    add("--steps", type=int, default=20, help="steps simulated; default: 20")
    add("--seed", type=int, default=0, help="of the simulation; default: 0")
    add("--json", type=Path, help="file to write the table's rows to")
    add("--plot", type=Path, help="file to draw the shares of compute to")
    options = parser.parse_args()
    for split in options.split:
        if split < 1 or options.node_size % split:
            parser.error(f"--split must divide --node-size. Received: --split {split}")
    return options


def main() -> None:
    options = parse()
    machine = Machine(
        options.flops, options.utilization, options.node_size, options.node_bandwidth,
        options.node_latency, options.network_bandwidth, options.network_latency,
        options.memory_bandwidth,
    )  # fmt: skip
    cells = [(p, a, s) for p in ("base", "big") for s in options.split for a in ACCELERATORS]
    rows = [
        row(preset, count, split, options.batch_tokens or options.tokens * count, machine, options)
        for preset, count, split in tqdm(cells, unit="row")
    ]
    print(f"\n{table(rows, FORMATS)}")
    if options.json:
        write_json(options.json, rows)
    if options.plot:
        plot(options.plot, rows)


if __name__ == "__main__":
    main()
