"""Finishes a training: averages checkpoints into the model, and shows its embeddings (§6.1)."""

import shutil
import zipfile
from pathlib import Path

import keras

from keras_transformer._files import atomic_write, read_json
from keras_transformer.data import Tokenizer
from keras_transformer.runs import checkpoints
from keras_transformer.runs.base_model import leave_out
from keras_transformer.runs.checkpoints import ValidationHistory
from keras_transformer.runs.run import Run
from keras_transformer.training.checkpoint import average_checkpoints
from keras_transformer.training.tensorboard import write_projector

# TensorBoard reads the vectors as text: these take 36 MB with 512 features.
_PROJECTED = 10_000


def finish(run: Run, history: ValidationHistory, tokenizer: Tokenizer) -> None:
    """Averages checkpoints into `model.keras`, unless it is already their average."""
    averaged = checkpoints.read_member(run.model_path, checkpoints.AVERAGE_LAST_MEMBER)
    if run.has_current_model() and averaged in (None, str(run.recipe.evaluation.average_last)):
        is_over = history.is_over(run.recipe.training.early_stopping_patience)
        larger = "early_stopping_patience" if is_over else "steps"
        print(
            f"the run {run.directory} is finished, so {run.model_path} is not changed. "
            f"To train on, resume it with a larger training.{larger}"
        )
        return
    chosen = _chosen(run, history)
    _write_embeddings(run, write_average(run, chosen), tokenizer)
    average = "average" if len(chosen) > 1 else "model"
    print(f"{run.model_path} is the {average} of {_names(chosen)}")


def write_average(run: Run, paths: list[Path]) -> keras.Model:
    """Writes and returns the average of checkpoints as the finished model of a run.

    An earlier finished model is copied to `model.previous.keras`. The file also holds the
    fingerprint of the tokenizer and, so that a resumed training knows whether they changed, the
    hash of the newest checkpoint and the setting `evaluation.average_last`.
    """
    newest = read_json(run.checkpoints()[-1] / checkpoints.STATE)["sha256"]
    fingerprint = checkpoints.read_member(run.model_path, checkpoints.TOKENIZER_MEMBER)
    members = {
        checkpoints.TOKENIZER_MEMBER: fingerprint or run.tokenizer().fingerprint,
        checkpoints.CHECKPOINT_MEMBER: newest[checkpoints.CHECKPOINT_MODEL],
        checkpoints.AVERAGE_LAST_MEMBER: str(run.recipe.evaluation.average_last),
    }
    with run.writing(), atomic_write(run.model_path) as partial:
        model = average_checkpoints(paths, partial)
        if run.base:
            leave_out(partial, run.base)
        checkpoints.write_members(partial, members)
        if zipfile.is_zipfile(run.model_path):
            with atomic_write(run.directory / "model.previous.keras") as copy:
                shutil.copyfile(run.model_path, copy)
    return model


def _write_embeddings(run: Run, model: keras.Model, tokenizer: Tokenizer) -> None:
    """Writes the embeddings of the first tokens of the vocabularies for TensorBoard."""
    source = (model.source_embedding, tokenizer.source_pieces)
    target = (model.target_embedding, tokenizer.target_pieces)
    is_shared = model.source_embedding is model.target_embedding
    sides = {"joint": source} if is_shared else {"source": source, "target": target}
    embeddings = {
        side: (keras.ops.convert_to_numpy(layer.embeddings[:_PROJECTED]), pieces[:_PROJECTED])
        for side, (layer, pieces) in sides.items()
    }
    write_projector(run.logs_dir, embeddings)


def _chosen(run: Run, history: ValidationHistory) -> list[Path]:
    """Returns the checkpoints to average into `model.keras`, without those of the warm-up."""
    settings, paths = run.recipe.training, run.checkpoints()
    # The mean of adapters is not that of the weights.
    count = 1 if settings.lora_rank else run.recipe.evaluation.average_last
    chosen, kept = paths[-count:], paths[-1]
    if (patience := settings.early_stopping_patience) is not None:
        chosen = checkpoints.best_checkpoints(paths, history, count)
        (kept,) = checkpoints.best_checkpoints(paths, history, 1)
        reason = f"{patience} checkpoints without a lower validation loss, "
        print(
            f"Training ended after {reason if history.is_over(patience) else ''}{paths[-1].name}. "
            f"The best checkpoint is {kept.name}, with a validation loss of "
            f"{history.losses[checkpoints.checkpoint_step(kept)]:.4f} nats per token"
        )
    warmup = settings.warmup_steps
    early = [path for path in chosen if checkpoints.checkpoint_step(path) < warmup and path != kept]
    if early:
        print(f"not averaged, because training.warmup_steps={warmup:,}: {_names(early)}")
    return [path for path in chosen if path not in early]


def _names(paths: list[Path]) -> str:
    return ", ".join(path.name for path in paths)
