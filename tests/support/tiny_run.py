"""A training of seconds, whole and in parts, for tests and for processes that tests kill.

`python tiny_run.py FOLDER` trains in a folder, and says whether that loaded TensorFlow.
`python tiny_run.py FOLDER step|checkpoint N` dies as by `kill -9` when N steps have been made, or
while the checkpoint of step N is being written.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.recipe.settings import Recipe
from keras_transformer.runs.run import Run
from keras_transformer.training import train
from support.fitting_process import Kill

STEPS, INTERVAL, ACCUMULATION = 5, 2, 2


SECTIONS: dict[str, dict[str, Any]] = {
    "tokenizer": {
        "model_type": "unigram",
        "vocabulary_size": 17,
        "target_normalization": "identity",
    },
    "model": {"preset": "tiny", "num_layers": 1, "d_model": 4, "num_heads": 2, "d_ff": 4},
    "training": {
        "steps": STEPS,
        "checkpoint_every": INTERVAL,
        "accumulation_steps": ACCUMULATION,
        "tokens_per_batch": 64,
        "warmup_steps": 2,
        "simcut": 1.0,
        "simcut_rate": 0.3,
        "subword_regularization": 0.2,
        "weight_decay": 0.1,
        "global_clipnorm": 1.0,
        "ema_momentum": 0.5,
        "validation_bleu_sentences": 2,
    },
    "evaluation": {"average_last": 2},
}


def recipe_for(directory: Path, **sections: dict[str, Any]) -> Recipe:
    """A recipe whose text is in `directory`; random states matter. `sections` replace settings."""
    files = {"source": "text.en", "target": "text.de"}
    data = {"train": files, "validation": files, "test": files, "directory": directory}
    usual = {**SECTIONS, "data": data}
    changed = {name: settings | sections.get(name, {}) for name, settings in usual.items()}
    return Recipe.model_validate({"name": "tiny_run", **changed})


def new_run(directory: Path, **sections: dict[str, Any]) -> Run:
    """A run folder with its text, before training."""
    write_text(directory)
    return Run.create(directory / "run", recipe_for(directory, **sections))


def write_text(directory: Path) -> None:
    """Sentences of one to five letters, and each backwards."""
    directory.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(list("abcdef"), rng.integers(1, 6))) for _ in range(60)]
    (directory / "text.en").write_text("".join(f"{line}\n" for line in lines))
    (directory / "text.de").write_text("".join(f"{line[::-1]}\n" for line in lines))


def begin(directory: Path, *callbacks: Any) -> Run:
    """Train in a new run folder."""
    train(run := new_run(directory), callbacks=[*callbacks])
    return run


def go_on(directory: Path, *callbacks: Any) -> Run:
    """Train on in a run folder that exists."""
    run = Run.resume(directory / "run", recipe_for(directory))
    train(run, resume=True, callbacks=[*callbacks])
    return run


def _die_in_checkpoint(step: int) -> None:
    """After the model's file, before the other."""
    from keras_transformer.training import checkpoint

    sha256_of = checkpoint.sha256_of

    def die_at_step(path: Path) -> str:
        if path.parent.name.startswith(f".partial-step-{step:08d}-"):
            os.kill(os.getpid(), signal.SIGKILL)
        return sha256_of(path)

    checkpoint.sha256_of = die_at_step  # type: ignore[assignment]


if __name__ == "__main__":
    folder, *death = sys.argv[1:]
    callbacks = []
    if death:
        place, step = death[0], int(death[1])
        if place == "step":
            callbacks.append(Kill(step * ACCUMULATION))
        else:
            _die_in_checkpoint(step)
    (go_on if (Path(folder) / "run").exists() else begin)(Path(folder), *callbacks)
    print("TensorFlow is loaded" if "tensorflow" in sys.modules else "TensorFlow is absent")
