"""Trains a small GPT at context 1,024 with dense and with sparse attention (Child et al. 2019).

Each model is the one of the recipe `shakespeare` with rows of 1,024 characters, with the same
weights at the start and the same batches. Only the attention pattern differs. In the dense model,
each character attends to all characters before it. In a sparse one, it attends to fewer, and two
layers together connect it with all of them:

strided   the 128 characters before it, and every 128th character
fixed     the characters of its block of 256 before it, and the last 16 of each earlier block

Each model is trained in a process of its own, which is how its peak memory is known. A model that
is finished is not trained again, and one that was interrupted continues.

command:  KERAS_BACKEND=torch OMP_NUM_THREADS=1 python recipes/shakespeare_sparse.py
data:     tinyshakespeare, as for the recipe `shakespeare`
target:   a loss within 0.02 nats per character of the dense model's
hardware: a CPU with bfloat16 instructions; not for Windows
steps:    1,400 of 4 rows of 1,024 characters per model
time:     not yet measured
score:    not yet measured. A program before this one drew its rows at random places of the text,
          with this model and optimizer, on 1 CPU core beside other jobs: nats per character of the
          validation text, and peak memory of the process: dense 1.621 and 2,454 MB, strided 1.597
          and 1,596 MB (14 min), fixed 1.600 and 1,741 MB (15 min).

Options that this command does not know are those of `keras-transformer train`, for all models.

Source: Child et al. 2019, Generating Long Sequences with Sparse Transformers.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from keras_transformer import Run
from keras_transformer.runs.checkpoints import load_history

# 1. The models.

LONG = {
    "data.max_length": 1024,
    "model.dropout_rate": 0.1,
    "model.attention_dropout_rate": 0.0,
    "training.steps": 1400,
    "training.cosine_steps": 1300,
    "training.tokens_per_batch": 4096,
    "training.dtype_policy": "mixed_bfloat16",
    "training.checkpoint_every": 700,
}
MODELS = {
    "dense": {},
    "strided": {"model.attention_pattern": "strided", "model.attention_window": 128},
    "fixed": {"model.attention_pattern": "fixed", "model.attention_window": 256},
}
RECIPES = Path(__file__).parent
# The command, with the patterns.
PROGRAM = "import ablation_layers, keras_transformer_cli; keras_transformer_cli.main()"

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
parser.add_argument("--output", type=Path, default=Path("runs/shakespeare_sparse"))
options, given = parser.parse_known_args()


# 2. One model.


def train(name):
    """Trains a model in a process of its own, or returns its result if it is finished."""
    folder, path = options.output / name, options.output / f"{name}.json"
    settings = [word for x in (LONG | MODELS[name]).items() for word in ("--set", f"{x[0]}={x[1]}")]
    arguments = [*settings, *given]
    if path.is_file() and (result := json.loads(path.read_text()))["arguments"] == arguments:
        return result
    is_whole = not folder.exists()  # Otherwise, the process trains only the last steps.
    words = ["train", str(RECIPES / "shakespeare.yaml"), *arguments, "--run", str(folder)]
    words += [] if is_whole else ["--resume"]
    paths = os.pathsep.join([str(RECIPES), *sys.path])
    start = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], env={**os.environ, "PYTHONPATH": paths}
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"Error: the training of the model {name} failed")
    unit = 1 if sys.platform == "darwin" else 1024
    losses = load_history(Run.open(folder).checkpoints()[-1]).losses
    result = {
        "model": name,
        "loss": losses[max(losses)],
        "seconds": time.monotonic() - start if is_whole else None,
        "peak_bytes": usage.ru_maxrss * unit,
        "arguments": arguments,
    }
    path.write_text(json.dumps(result) + "\n")
    return result


# 3. The table.

results = [train(name) for name in options.models]
print("\n| attention | nats per character | seconds | peak memory in MB |\n|---|---:|---:|---:|")
for x in results:
    seconds = "" if x["seconds"] is None else f"{x['seconds']:,.0f}"
    print(f"| {x['model']} | {x['loss']:.4f} | {seconds} | {x['peak_bytes'] / 1e6:,.0f} |")
