"""Answers of a model that any backend wrote, in a process of its own.

    KERAS_BACKEND=jax python portability.py write MODEL.keras
    KERAS_BACKEND=torch python portability.py answer MODEL.keras ANSWERS.npz [MODEL ANSWERS ...]
    KERAS_BACKEND=tensorflow python portability.py export MODEL.keras FOLDER ANSWERS.npz

`run` does that for a test.
"""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np

from keras_transformer import SearchOptions, search
from support.small_models import inputs_of, new_model

BACKENDS = ("tensorflow", "jax", "torch")
TESTS = Path(__file__).parent
LONGEST = 7


def run(backend: str, *arguments: str | Path) -> None:
    """Runs a command of this file: here if this is the backend, else in a child process."""
    if backend == keras.backend.backend():
        main(*map(str, arguments))
        return
    search_path = os.pathsep.join([str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    child = subprocess.run(
        [sys.executable, __file__, *map(str, arguments)],
        env={**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": search_path},
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr[-4000:]


def write(path: Path) -> None:
    new_model("all_at_once", num_layers=1).save(path)


def answer(path: Path) -> dict[str, np.ndarray]:
    """Logits, and the ids of greedy and beam search."""
    model = keras.saving.load_model(path, safe_mode=True)
    inputs = inputs_of(model)
    greedy, beam = SearchOptions(beam_size=1), SearchOptions(beam_size=3, n_best=2)
    answers = {
        "logits": model.predict_on_batch(inputs),
        "greedy": search(model, inputs["source_ids"], max_length=LONGEST, options=greedy).ids,
        "beam": search(model, inputs["source_ids"], max_length=LONGEST, options=beam).ids,
    }
    return {name: keras.ops.convert_to_numpy(tensor) for name, tensor in answers.items()}


def export(path: Path, folder: Path) -> dict[str, np.ndarray]:
    """Logits of the SavedModel that Keras makes of the model."""
    import tensorflow as tf

    model = keras.saving.load_model(path, safe_mode=True)
    model.export(str(folder), format="tf_saved_model", verbose=False)
    saved_model = tf.saved_model.load(str(folder))
    return {"logits": saved_model.serve(inputs_of(model)).numpy()}


def main(command: str, *arguments: str) -> None:
    if command == "write":
        write(Path(arguments[0]))
    elif command == "export":
        path, folder, answers = arguments
        np.savez(answers, **export(Path(path), Path(folder)))
    else:
        for path, answers in zip(arguments[0::2], arguments[1::2], strict=True):
            np.savez(answers, **answer(Path(path)))


if __name__ == "__main__":
    main(*sys.argv[1:])
