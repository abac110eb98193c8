"""Exports a run as a small run folder for other users."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_transformer._files import atomic_write, check_is_free, write_json
from keras_transformer.exchange.exported_model import check_model
from keras_transformer.export.options import RunWeights, check_weights
from keras_transformer.layers.saving import check_finite
from keras_transformer.models.base import in_float32
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.recipe.settings import OF_RUN, Recipe
from keras_transformer.runs.run import Checkpoint, Run
from keras_transformer.translation.comparison import (
    Agreement,
    compare_translations,
    random_sentences,
    scored_translations,
)
from keras_transformer.translation.engines import open_translator
from keras_transformer.translation.open_run import open_model
from keras_transformer.translation.translator import Translator

_SCORE_TOLERANCE = 1e-3  # nats


def export_shared_run(
    run: Run,
    directory: str | Path,
    quantization: RunWeights = "float32",
    sentences: Sequence[str] | None = None,
    checkpoint: Checkpoint | None = None,
) -> Agreement:
    """Writes a copy of a run with all that evaluation and translation need.

    The copy has the recipe without folders of the user, the tokenizer and the finished model. If
    text files in different folders have the same name, these folders stay in the recipe. If the run
    has a folder `text`, the copy has its validation and test text. The copy has the scores of the
    exported model on validation and test text, with the hash of the run's model file. It has no
    training text, checkpoints and logs. Its model computes in float32, also if it was trained in
    mixed precision.

    Example:

    >>> export_shared_run(Run.open("runs/quickstart"), "quickstart", "float16")

    Args:
        run: A run with a finished model that is not quantized.
        directory: A new or empty folder.
        quantization: Type of the weights in the file: `"float32"`, or `"float16"`, which takes half
            the space. Keras converts float16 weights to float32 when it loads them. Defaults to
            `"float32"`.
        sentences: Sentences that both models translate for the comparison. Defaults to None, which
            means 16 random ones.
        checkpoint: The checkpoint to copy instead of the finished model, see `open_model`. Defaults
            to None, which means the finished model.

    Returns:
        An `Agreement` of the copy's translations with those of the run.

    Raises:
        UserError: If the run has no model, if its scores cannot be read, or if `directory` is not
            empty. If the weights are float32 and a translation of the copy differs, or if a weight
            exceeds the range of float16.
        ValueError: If `quantization` is unknown, or if the model is quantized.
    """
    check_weights("run", quantization)
    check_is_free(directory)
    model, tokenizer = open_model(run, checkpoint), run.tokenizer()
    check_model(model, tokenizer)
    sentences = sentences or random_sentences(tokenizer)
    exact = in_float32(model)
    with atomic_write(directory) as partial:
        copy = Run(partial, _without_folders(run.recipe))
        copy.write(exact if quantization == "float32" else _halved(exact), tokenizer)
        if (text := run.directory / "text").is_dir():
            shutil.copytree(text, partial / "text", ignore=shutil.ignore_patterns("train.*"))
        if run.fingerprints_path.exists():
            shutil.copy(run.fingerprints_path, partial)
        if run.word_forms_path.exists():
            shutil.copy(run.word_forms_path, partial)
        if scores := _scores(run, checkpoint):
            write_json(copy.scores_path, scores)
        return compare_translations(
            "copy",
            Translator(exact, tokenizer, run.recipe.evaluation.search_options()),
            sentences,
            scored_translations(open_translator(copy, as_written=True), sentences),
            tolerance=_SCORE_TOLERANCE,
            is_exact=quantization == "float32",
        )


def _without_folders(recipe: Recipe) -> Recipe:
    """Returns the recipe without folders of the user (see `export_shared_run`)."""
    tree = recipe.model_dump(mode="json", exclude_none=True)
    tree["data"].pop("directory", None)
    for key in ("initial_run", "teacher"):
        tree["training"].pop(key, None)
    splits = [tree["data"].get(split, {}) for split in ("train", "validation", "test")]
    corpora = [x for split in splits for x in (split if isinstance(split, list) else [split])]
    for corpus in corpora:
        if teacher := corpus.get("translated_by"):
            corpus["translated_by"] = Path(teacher).name
    places = [(files, side) for files in corpora for side in {"source", "target"} & files.keys()]
    paths = {Path(files[side]) for files, side in places}
    if len({path.name for path in paths}) == len(paths):
        for files, side in places:
            files[side] = Path(files[side]).name
    return Recipe.model_validate(tree, context=OF_RUN)


def _scores(run: Run, checkpoint: Checkpoint | None) -> list[dict[str, Any]]:
    """Returns the scores of the exported model on the splits, without folders of the user."""
    folder = None if checkpoint is None else run.checkpoint(checkpoint)
    model = run.scores.scored_model(folder)["checkpoint_sha256"]
    return [
        {name: value for name, value in entry.items() if name != "checkpoint"}
        for entry in run.scores.entries()
        if entry.get("checkpoint_sha256") == model and "split" in entry
    ]


def _halved(model: Seq2Seq) -> Seq2Seq:
    """Returns a copy whose file has float16 weights, but the configuration of `model`."""
    half = type(model).from_config({**model.get_config(), "dtype": "float16"})
    half.set_weights(model.get_weights())
    check_finite(half, "the run")
    half.get_config = model.get_config
    return half
