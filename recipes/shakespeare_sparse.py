"""Trains a small GPT at context 1,024 with dense and with sparse attention (Child et al. 2019).

Each model is the one of `shakespeare_gpt.py --preset long`, with the same weights at the start and
the same batches. Only the attention pattern differs. In the dense model, each character attends to
all characters before it. In a sparse one, it attends to fewer, and two layers together connect it
with all of them:

strided   the 128 characters before it, and every 128th character
fixed     the characters of its block of 256 before it, and the last 16 of each earlier block

Each model is trained in a process of its own, which is how its peak memory is known. A model that
is finished is not trained again, and one that was interrupted continues.

command:  KERAS_BACKEND=torch OMP_NUM_THREADS=1 python recipes/shakespeare_sparse.py
data:     tinyshakespeare, as for `shakespeare_gpt.py`
target:   a loss within 0.02 nats per character of the dense model's
hardware: 1 CPU core with bfloat16 instructions; not for Windows
time:     14 min for strided and 15 for fixed attention, on one core beside other jobs on the
          other. A step of the dense model takes about 1.4 times as long.
steps:    1,400 of 4 windows of 1,024 characters per model
score:    nats per character of the validation text, and peak memory of the process: dense 1.621 and
          2,454 MB, strided 1.597 and 1,596 MB, fixed 1.600 and 1,741 MB

Options that this command does not know are those of `shakespeare_gpt.py`, for all models.

Source: Child et al. 2019, Generating Long Sequences with Sparse Transformers.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

# 1. The models.

MODELS = {
    "dense": [],
    "strided": ["--attention-pattern=strided", "--attention-window=128"],
    "fixed": ["--attention-pattern=fixed", "--attention-window=256"],
}

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
parser.add_argument("--output", type=Path, default=Path("runs/shakespeare_sparse"))
options, settings = parser.parse_known_args()


# 2. One model. The last line that the program prints begins with the loss.


def train(name):
    """Trains a model in a process of its own, or returns its result if it is finished."""
    folder, path = options.output / name, options.output / f"{name}.json"
    arguments = ["--preset=long", *MODELS[name], *settings]
    if path.is_file() and (result := json.loads(path.read_text()))["arguments"] == arguments:
        return result
    is_whole = not folder.exists()  # Otherwise, the process trains only the last steps.
    program = Path(__file__).with_name("shakespeare_gpt.py")
    command = [sys.executable, str(program), *arguments, f"--output={folder}"]
    start = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            print(f"{name}: {line}", end="", flush=True)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"Error: the training of the model {name} failed")
    unit = 1 if sys.platform == "darwin" else 1024
    result = {
        "model": name,
        "loss": float(line.split()[0]),
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
