"""The training of `tiny_run`, by several processes and devices together.

`python -m support.tiny_job FOLDER [--resume]` is one of the processes. `run_job` starts all of them
as the launcher of each engine does. With `DIES=N`, a process dies after step N.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import ablation_layers  # noqa: F401  registers batch normalization

from keras_transformer.recipe.files import load_recipe
from keras_transformer.recipe.settings import Recipe
from keras_transformer.training import train
from keras_transformer.training.run.train import open_run, start
from support import tiny_run

# With an ε far above rounding, steps are as wrong as gradients are. With 1e-9, Adam's first steps
# are about the learning rate long: also where the gradient is nothing but rounding, and even if the
# gradients of replicas come to twice what they should.
SETTINGS = [
    "training.adam_epsilon=0.01",
    "training.distribution=data_parallel",
    "training.accumulation_steps=1",
    "model.dropout_rate=0.0",
    "training.simcut=0.0",
    "training.validation_bleu_sentences=0",
    "tokenizer.vocabulary_size=16",
]


def prepare(directory: Path, settings: list[str]) -> None:
    """Leave text and recipe in a folder."""
    tiny_run.write_text(directory)
    path = directory / "recipe.yaml"
    path.write_text(tiny_run.recipe_for(directory).to_yaml())
    recipe: Recipe = load_recipe(path, [*SETTINGS, *settings])
    path.write_text(recipe.to_yaml())


def run_job(
    directory: Path, processes: int, devices: int = 1, dies: int | None = None
) -> tuple[list[int], list[str]]:
    """Train in a folder that `prepare` has left, on from where an earlier job stopped."""
    resume = ["--resume"] * (directory / "run").exists()
    words = ["support.tiny_job", str(directory), *resume]
    return run_processes(words, directory, processes, devices, dies)


def run_processes(
    words: list[str], folder: Path, processes: int, devices: int = 1, dies: int | None = None
) -> tuple[list[int], list[str]]:
    """Runs a module in processes, of which the last dies after that many steps.

    Returns their exit codes and outputs.
    """
    port, job = free_port(), []
    for rank in range(processes):
        environment = os.environ | environment_of(rank, processes, port, devices)
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        if dies is not None and rank == processes - 1:
            environment["DIES"] = str(dies)
        with (folder / f"log{rank}").open("w") as log:
            command = [sys.executable, "-m", *words]
            job.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    try:
        codes = [process.wait(900) for process in job]
    finally:
        for process in job:
            process.kill()
    return codes, [(folder / f"log{rank}").read_text() for rank in range(processes)]


def environment_of(rank: int, processes: int, port: int, devices: int) -> dict[str, str]:
    """What the launcher of the engine sets."""
    count = str(processes)
    return {
        "torch": {
            "RANK": str(rank),
            "WORLD_SIZE": count,
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        },
        "jax": {
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} "
            f"--xla_force_host_platform_device_count={devices}",
            "KERAS_DISTRIBUTION_JOB_ADDRESSES": f"localhost:{port}",
            "KERAS_DISTRIBUTION_NUM_PROCESSES": count,
            "KERAS_DISTRIBUTION_PROCESS_ID": str(rank),
        },
        "tensorflow": {"TINY_JOB_DEVICES": str(devices)}
        | ({"TF_CONFIG": _tf_config(rank, processes, port)} if processes > 1 else {}),
    }[os.environ["KERAS_BACKEND"]]


def _tf_config(rank: int, processes: int, port: int) -> str:
    # Only the first port is known to be free; the others are so as a rule.
    workers = [f"localhost:{port + index}" for index in range(processes)]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def split_cpu(devices: int) -> None:
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    parts = [tf.config.LogicalDeviceConfiguration()] * devices
    tf.config.set_logical_device_configuration(cpu, parts)


def main(directory: Path) -> None:
    if devices := os.environ.get("TINY_JOB_DEVICES"):
        split_cpu(int(devices))
    if dies := os.environ.get("DIES"):
        tiny_run._die_in_step(int(dies))
    recipe = load_recipe(directory / "recipe.yaml")
    folder = directory / "run"
    resume = "--resume" in sys.argv
    train(open_run(start(recipe), folder, recipe, resume), resume)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
