#!/usr/bin/env python
"""Two devices against one, in training steps of the `tiny` case, on two cores of a CPU.

PyTorch trains in two processes, JAX and TensorFlow in one process with two devices. Each device has
a thread. They compete with one process of one thread, and with one process of two. All have the
same global batch and train through `model.fit`, turn by turn: a turn is an epoch of one step, and
an engine sleeps between its own turns. A process of one thread also trains on half of the batch, as
one of two devices would without the other. What it takes beyond half of the whole batch's time is
what devices do not divide, such as the update of the weights. What two devices take beyond the time
of half of the batch is the sum of their gradients, and that they share memory.
"""

import argparse
import itertools
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from _common import Worker, table, write_json
from _training_engines import ADAM, CASES, LABEL_SMOOTHING, batch_of, new_transformer
from tqdm import tqdm

BACKENDS = ("tensorflow", "jax", "torch")
# Processes, devices of each, cores of each, and parts of the batch that it leaves out.
WAYS = {
    "one_thread": (1, 1, 1, 1),
    "half_batch": (1, 1, 1, 2),
    "two_threads": (1, 1, 2, 1),
    "two_devices": (1, 2, 2, 1),
}
FORMATS = dict.fromkeys(
    (*(f"{way}_s" for way in WAYS), "on_paper", "free_cores", "speedup", "to_two_threads"), ".3f"
)


def start_workers(backend: str, way: str, port: int) -> list[Worker]:
    """Starts the processes of a way. The first reply of each comes after its first turn."""
    processes, devices, cores, _ = WAYS[way]
    if backend == "torch" and way == "two_devices":
        processes, devices, cores = 2, 1, 1
    threads = str(cores // devices)
    environment = {
        "KERAS_BACKEND": backend,
        "OMP_NUM_THREADS": threads,
        "TF_NUM_INTRAOP_THREADS": threads,
        "TF_NUM_INTEROP_THREADS": "4",  # with one, it would wait for its own data
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} "
        f"--xla_cpu_multi_thread_eigen={str(threads != '1').lower()}",
    }
    if processes > 1:
        environment |= {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    words = [way, str(devices), str(cores)]
    return [
        Worker(Path(__file__), "--worker", *words, str(rank), RANK=str(rank), **environment)
        for rank in range(processes)
    ]


def work(way: str, devices: int, cores: int, rank: int) -> None:
    """Trains in a process until it is killed."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Whatever libraries print must not mix with the replies.
    all_cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, all_cores[rank : rank + cores])

    import keras

    from keras_transformer.cli.process import keep_freed_memory
    from keras_transformer.training import (
        Distribution,
        MaskedCrossentropy,
        SlicedLogitsTrainer,
        TransformerAdam,
    )

    class Turns(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if not sys.stdin.readline():
                sys.exit()
            self.begin = time.perf_counter(), time.process_time()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            float(keras.ops.sum(self.model.trainable_variables[0]))  # waits for the last update
            wall, cpu = self.begin
            taken = [time.perf_counter() - wall, time.process_time() - cpu]
            print(taken, file=replies, flush=True)

    keep_freed_memory()
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        parts = [tf.config.LogicalDeviceConfiguration()] * devices
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, parts)
    distribution = Distribution.all_devices() if way == "two_devices" else Distribution()
    case = CASES["tiny"]
    case = replace(case, batch_size=case.batch_size // WAYS[way][3])
    source_ids, target_ids, labels = batch_of(case)
    batch = {"source_ids": source_ids, "target_ids": target_ids}, labels
    with distribution.making():
        model = new_transformer(case)
        trainer = SlicedLogitsTrainer(
            model, MaskedCrossentropy(LABEL_SMOOTHING), distribution=distribution
        )
        trainer.compile(TransformerAdam(**ADAM), jit_compile=keras.config.backend() == "jax")
    with distribution.fitting(trainer):
        trainer.fit(
            distribution.split(itertools.repeat(batch)),
            epochs=10**6, steps_per_epoch=1, verbose=0, callbacks=[Turns()],
        )  # fmt: skip


def take_turn(workers: Sequence[Worker]) -> tuple[float, float]:
    """Returns the seconds of a step in the slowest process, and of the CPUs in all of them."""
    for worker in workers:
        worker.send("step")
    walls, cpus = zip(*(worker.receive(300) for worker in workers), strict=True)
    return max(walls), sum(cpus)


def measure(backend: str, turns: int, port: int) -> dict[str, Any]:
    taken: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        workers = {way: start_workers(backend, way, port) for way in WAYS}
        for worker in itertools.chain.from_iterable(workers.values()):
            stack.enter_context(worker)
        take_turn([*itertools.chain.from_iterable(workers.values())])  # All compile.
        order = list(WAYS)
        for _ in tqdm(range(turns), desc=backend, unit="round"):
            for way in order:
                taken[way].append(take_turn(workers[way]))
            order.append(order.pop(0))
    return row(backend, taken)


def row(backend: str, taken: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """Medians of the seconds and of the ratios, and the ranges of the ratios over the rounds.

    On paper, two devices take the time of half of the batch. `free_cores` is the speedup if each
    device had a core for itself and none waited: twice the CPU time of one, over that of both.
    """
    seconds = {way: [wall for wall, _ in pairs] for way, pairs in taken.items()}
    one, two = (median(cpu for _, cpu in taken[way]) for way in ("one_thread", "two_devices"))

    def spread(way: str) -> tuple[float, str]:
        ratios = [x / y for x, y in zip(seconds[way], seconds["two_devices"], strict=True)]
        return median(ratios), f"{min(ratios):.2f} to {max(ratios):.2f}"

    (speedup, of_speedup), (to_threads, of_threads) = map(spread, ("one_thread", "two_threads"))
    return {
        "backend": backend,
        **{f"{way}_s": median(values) for way, values in seconds.items()},
        "on_paper": median(seconds["one_thread"]) / median(seconds["half_batch"]),
        "free_cores": 2 * one / two,
        "speedup": speedup,
        "of_speedup": of_speedup,
        "to_two_threads": to_threads,
        "of_two_threads": of_threads,
    }


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        way, *numbers = sys.argv[2:]
        work(way, *map(int, numbers))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--backends", nargs="+", choices=BACKENDS, default=BACKENDS, help="default: all three")
    add("--turns", type=int, default=7, help="timed turns of each way; default: 7")
    add("--port", type=int, default=29_547, help="of PyTorch's processes; default: 29547")
    add("--json", type=Path, help="file to write the table's rows to")
    options = parser.parse_args()
    rows = [measure(backend, options.turns, options.port) for backend in options.backends]
    print(f"\n{table(rows, FORMATS)}")
    if options.json:
        write_json(options.json, rows)


if __name__ == "__main__":
    main()
