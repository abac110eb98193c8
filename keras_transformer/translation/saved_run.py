"""Makes a run of a model that was trained in Python."""

from pathlib import Path
from typing import Any

from keras_transformer._files import atomic_write, check_is_free
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.exchange.exported_model import check_model
from keras_transformer.models.base import in_float32, merge_lora
from keras_transformer.runs.run import Run
from keras_transformer.translation.imported_run import recipe_of
from keras_transformer.translation.translator import Translator


def save_run(
    directory: str | Path,
    model: Any,
    tokenizer: Tokenizer | None = None,
    *,
    source_language: str = "und",
    target_language: str = "und",
    options: SearchOptions | None = None,
) -> Run:
    """Makes a run folder of a model that was trained in Python, so that every command takes it.

    The run has a recipe without text, the tokenizer and the model. `training.initial_run` trains on
    from it, and `evaluate` takes the text of `--files`. Its model computes in float32, and its
    kernels include LoRA.

    Example:

    >>> model.fit(ParallelDataset(pairs, tokenizer))
    >>> save_run("runs/mine", model, source_language="en", target_language="de")

    Args:
        directory: A new or empty folder.
        model: A `Seq2Seq`, such as `Transformer`, that is not quantized, or its
            `SlicedLogitsTrainer`.
        tokenizer: The tokenizer that the model was trained with. Defaults to None, which means that
            of the `ParallelDataset` in `fit`.
        source_language: Code of BCP 47 or ISO 639. Defaults to "und".
        target_language: As `source_language`.
        options: The search options of the recipe. Defaults to None, which means the defaults.

    Raises:
        UserError: If `directory` is not empty, if there is no tokenizer, or if a language code does
            not exist.
        ValueError: If the model is no `Seq2Seq` or is quantized, or if the tokenizer has another
            size than the model.
    """
    check_is_free(directory)
    translator = Translator(model, tokenizer)
    model, tokenizer = translator.model, translator.tokenizer
    check_model(model, tokenizer)
    languages = source_language, target_language
    search = options.model_dump() if options else {}
    what, place = "Trained in Python", f"{directory}"
    recipe = recipe_of(directory, model, tokenizer, languages, what, search, place)
    with atomic_write(directory) as partial:
        Run(partial, recipe).write(merge_lora(in_float32(model)), tokenizer)
    return Run(directory, recipe)
