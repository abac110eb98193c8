"""Opens what a run holds: its model and its shortlist."""

import sys
from collections.abc import Sequence
from typing import Any

from keras_transformer._backend.compile_function import prefers_float32
from keras_transformer.capabilities import Capabilities
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.ensemble import Ensemble
from keras_transformer.decoding.shortlist import Shortlist
from keras_transformer.errors import UserError
from keras_transformer.models.base import loading_in_float32, merge_lora
from keras_transformer.runs.checkpoints import TOKENIZER_MEMBER, read_member
from keras_transformer.runs.loading import load_checkpoint_model, load_model
from keras_transformer.runs.run import Checkpoint, Run


def open_model(
    run: Run,
    checkpoint: Checkpoint | None = None,
    *,
    for_inference: bool = False,
    tokenizer: Tokenizer | None = None,
) -> Any:
    """Loads the finished model of a run, or the model of a checkpoint, with its tokenizer.

    Args:
        run: The run.
        checkpoint: `"best"` (the lowest validation loss), `"last"`, or the step of a checkpoint.
            Defaults to None, which means the finished model, `model.keras`.
        for_inference: Whether the model is only to translate or to score. A model that was trained
            in mixed precision then computes in float32 on TensorFlow and JAX on a CPU, which
            compile and compute half precision more slowly there. Defaults to False.
        tokenizer: The run's tokenizer, if it is already loaded. Defaults to None.

    Raises:
        UserError: If the model is missing or damaged, if it is not a translation model, if no
            program has registered its architecture, or if it was trained with a tokenizer other
            than the run's.
    """
    try:
        run.recipe.model.check()
    except ValueError as error:
        raise UserError(f"{run.recipe_path}: model: {error}") from None
    path = run.model_place(checkpoint)
    load = load_model if checkpoint is None else load_checkpoint_model
    with loading_in_float32(for_inference and prefers_float32()):
        model = load(path)
    capabilities = Capabilities.of(model)
    if capabilities.init_cache is None:
        raise UserError(
            f"{path} must contain a model that translates, such as a Transformer. "
            f"Received: a model of the class {type(model).__name__}"
        )
    if tokenizer is None:
        if not run.tokenizer_dir.is_dir():
            return model
        tokenizer = run.tokenizer()
    found = (tokenizer.source_vocabulary_size, tokenizer.target_vocabulary_size)
    needed = tuple(x or own for x, own in zip(capabilities.vocabulary_sizes, found, strict=True))
    trained_with = read_member(run.model_path, TOKENIZER_MEMBER)
    is_trained_with = trained_with in (None, tokenizer.fingerprint) and (
        capabilities.tokenizer_files in (None, tokenizer.files)
    )
    if found != needed or not is_trained_with:
        raise UserError(
            f"{run.tokenizer_dir} has other pieces than the tokenizer that {path} was trained "
            f"with. The model has vocabularies of {needed} ids. Received: {found} ids"
        )
    vars(model)["tokenizer_files"] = tokenizer.files
    return model


def open_models(
    runs: Sequence[Run],
    checkpoint: Checkpoint | None,
    languages: tuple[str | None, str | None],
    merge: bool = False,
) -> tuple[Any, Tokenizer]:
    """Loads the model of a run, or of an ensemble of several runs, and the tokenizer of both.

    With `merge`, its kernels contain their adapters. Raises `UserError` if the tokenizers differ.
    """
    tokenizer = runs[0].tokenizer()
    for other in runs[1:]:
        if other.tokenizer().files != tokenizer.files:
            raise UserError(f"the tokenizers of {other.directory} and {runs[0].directory} differ")
    models = [open_model(x, checkpoint, for_inference=True, tokenizer=tokenizer) for x in runs]
    models = [merge_lora(model) for model in models] if merge else models
    tokenizer = tokenizer.with_languages(*languages)
    for model in models:
        vars(model)["tokenizer_files"] = tokenizer.files
    return models[0] if len(models) == 1 else Ensemble(models), tokenizer


def open_shortlist(run: Run, tokenizer: Tokenizer | None = None) -> Shortlist:
    """Returns the `Shortlist`, which limits the target tokens of each translation.

    The first call learns the shortlist from the training text and saves it in `shortlist.npz`.
    `tokenizer` is the run's, if it is already loaded.

    Raises:
        UserError: If the run has no tokenizer, its training text is missing, or `shortlist.npz` is
            damaged.
    """
    path, tokenizer = run.shortlist_path, tokenizer or run.tokenizer()
    if path.exists() and (kept := Shortlist.load(path)).fingerprint == tokenizer.fingerprint:
        return kept
    with run.writing(), run.text.training_store(tokenizer) as store:
        print(f"Learning the shortlist of {run.directory}; done once.", file=sys.stderr)
        shortlist = Shortlist.learn(store, tokenizer)
        shortlist.save(path)
    return shortlist
