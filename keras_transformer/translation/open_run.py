"""Opens what a run holds: its model, its shortlist, an ensemble of several runs."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.errors import UserError
from keras_transformer.models.protocol import vocabulary_sizes
from keras_transformer.runs.checkpoints import (
    TOKENIZER_MEMBER,
    load_checkpoint_model,
    load_model,
    read_member,
)
from keras_transformer.runs.run import Checkpoint, Run

if TYPE_CHECKING:
    from keras_transformer.decoding.shortlist import Shortlist


def open_model(
    run: Run,
    checkpoint: Checkpoint | None = None,
    *,
    for_inference: bool = False,
    tokenizer: Tokenizer | None = None,
) -> Any:
    """Loads the finished model of a run, or the model of a checkpoint.

    Args:
        run: The run.
        checkpoint: `"best"` (the lowest validation loss), `"last"`, or the step of a checkpoint.
            Defaults to None, which means the finished model, `model.keras`.
        for_inference: Whether the model is only to translate or to score. A model that was trained
            in mixed precision then computes in float32 on TensorFlow and JAX on a CPU, which
            compile and compute half precision more slowly there. Defaults to False.
        tokenizer: The run's tokenizer, if it is already loaded. Defaults to None.

    Raises:
        UserError: If the model is missing or damaged, if it is not a translation model, or if
            it was trained with a tokenizer other than the run's.
    """
    from keras_transformer._backend.compile_function import prefers_float32
    from keras_transformer.models.base import loading_in_float32

    path = run.model_place(checkpoint)
    with loading_in_float32(for_inference and prefers_float32()):
        model = _finished_model(run) if checkpoint is None else load_checkpoint_model(path)
    if not hasattr(model, "init_cache"):
        raise UserError(
            f"{path} must contain a model that translates, such as a Transformer. "
            f"Received: a model of the class {type(model).__name__}"
        )
    if tokenizer or run.tokenizer_dir.is_dir():
        _check_tokenizer(run, model, path, tokenizer or run.tokenizer())
    return model


def _finished_model(run: Run) -> Any:
    try:
        return load_model(run.model_path)
    except UserError as error:
        if not run.checkpoints():
            raise
        raise UserError(
            f"{error}. To make the model again from the checkpoints, remove this file. Then: "
            f"{run.resume_command}"
        ) from error


def _check_tokenizer(run: Run, model: Any, path: Path, tokenizer: Tokenizer) -> None:
    found = (tokenizer.source_vocabulary_size, tokenizer.target_vocabulary_size)
    needed = tuple(x or own for x, own in zip(vocabulary_sizes(model), found, strict=True))
    trained_with = read_member(run.model_path, TOKENIZER_MEMBER) or tokenizer.fingerprint
    if found != needed or trained_with != tokenizer.fingerprint:
        raise UserError(
            f"{run.tokenizer_dir} is not the tokenizer that {path} was trained "
            f"with. The model has vocabularies of {needed} ids. Received: {found} ids"
        )


def open_ensemble(
    runs: Sequence[Run], checkpoint: Checkpoint | None = None
) -> tuple[Any, Tokenizer]:
    """Returns the model of one run, or the `Ensemble` of several runs, and its tokenizer.

    The models are only to translate, as with `for_inference` in `open_model`.

    Raises:
        UserError: As by `open_model`, and if the tokenizers of the runs differ.
    """
    from keras_transformer.decoding.ensemble import Ensemble

    first, *others = runs
    tokenizer = first.tokenizer()
    for run in others:
        if run.tokenizer().fingerprint != tokenizer.fingerprint:
            raise UserError(f"the tokenizers of {run.directory} and {first.directory} differ")
    models = [open_model(run, checkpoint, for_inference=True, tokenizer=tokenizer) for run in runs]
    return models[0] if len(models) == 1 else Ensemble(models), tokenizer


def open_shortlist(run: Run, tokenizer: Tokenizer | None = None) -> "Shortlist":
    """Returns the `Shortlist`, which limits the target tokens of each translation.

    The first call learns the shortlist from the training text and saves it in `shortlist.npz`.

    Args:
        run: The run.
        tokenizer: The run's tokenizer, if it is already loaded. Defaults to None.

    Raises:
        UserError: If the run has no tokenizer, its training text is missing, or `shortlist.npz`
            is damaged or cannot be written.
    """
    from keras_transformer.decoding.shortlist import Shortlist

    path, tokenizer = run.shortlist_path, tokenizer or run.tokenizer()

    def kept() -> Shortlist | None:
        found = Shortlist.load(path) if path.exists() else None
        return found if found and found.fingerprint == tokenizer.fingerprint else None

    if shortlist := kept():
        return shortlist
    if not os.access(run.directory, os.W_OK | os.X_OK):
        raise UserError(
            f"{run.directory} must be writable, because {path.name} is kept there; translate "
            "without a shortlist, or use a copy of the run"
        )
    with run.writing():
        if shortlist := kept():  # Another process may have learned it.
            return shortlist
        with run.text.training_store(tokenizer) as store:
            print(f"Learning the shortlist of {run.directory}; done once.", file=sys.stderr)
            shortlist = Shortlist.learn(store, tokenizer)
        shortlist.save(path)
    return shortlist
