"""What every exporter refuses, and the sentences that an export is compared by."""

import itertools
from pathlib import Path

import numpy as np

from keras_transformer.data import Tokenizer, read_parallel
from keras_transformer.errors import UserError
from keras_transformer.models import Transformer
from keras_transformer.run import Run


def check_is_free(directory: str | Path) -> None:
    """Checks that a folder is new or empty.

    Raises:
        UserError: If it is not.
    """
    directory = Path(directory)
    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise UserError(f"{directory} is not empty: remove it, or name another folder")


def check_model(model: Transformer, tokenizer: Tokenizer) -> None:
    """Checks that a model has the weights that it was trained with, and which tokenizer is its own.

    Raises:
        ValueError: If it is no `Transformer`, it is quantized, or the tokenizer is another's.
    """
    if not isinstance(model, Transformer):
        raise ValueError(f"`model` must be a Transformer. Received: model={model}")
    if any(weight.dtype == "int8" for weight in model.weights):
        raise ValueError(
            "`model` must not be quantized; what the export shall quantize is a matter of "
            f"`quantization`. Received: model={model}"
        )
    target_size = model.target_vocabulary_size or model.vocabulary_size
    sizes = (model.vocabulary_size, target_size, model.pad_id)
    expected = (
        tokenizer.source_vocabulary_size,
        tokenizer.target_vocabulary_size,
        tokenizer.pad_id,
    )
    if sizes != expected:
        raise ValueError(
            "`tokenizer` must be the one of the model: source and target vocabulary size and "
            f"`pad_id` are {sizes} in the model and {expected} in the tokenizer"
        )


def check_attention(model: Transformer, format: str) -> None:
    """Checks that a format without attention patterns and score biases can hold a model.

    Raises:
        ValueError: If its self-attention leaves positions out or adds a bias to the scores.
    """
    if model.attention_pattern not in (None, "full"):
        raise ValueError(
            f"{format} has no local or strided attention; a SavedModel has. "
            f"Received: model.attention_pattern={model.attention_pattern!r}"
        )
    if model.positions.has_score_bias:
        raise ValueError(
            f"{format} has no position encoding that adds to the scores; a SavedModel has. "
            f"Received: model.position_encoding={model.position_encoding!r}"
        )


def run_sentences(run: Run, count: int) -> list[str]:
    """Returns the first sentences of a run's validation text; random ones where it is gone.

    Args:
        run: A run that has a tokenizer.
        count: How many, unless there are fewer.
    """
    try:
        sources = (source.strip() for source, _ in read_parallel(*run.text("validation")))
        return list(itertools.islice(filter(None, sources), count))
    except UserError:
        return random_sentences(run.tokenizer(), count)


def random_sentences(tokenizer: Tokenizer, count: int, longest: int = 20) -> list[str]:
    """Returns texts of random source pieces, always the same.

    Args:
        tokenizer: Gives the pieces.
        count: How many texts.
        longest: Most pieces of a text, as drawn; it may be encoded as others.
    """
    random, pieces = np.random.default_rng(0), tokenizer.source_pieces
    numbers = tokenizer.eos_id + 1, len(pieces)
    drawn = (random.integers(*numbers, random.integers(2, longest + 1)) for _ in range(count))
    return ["".join(pieces[id] for id in ids).replace("▁", " ").strip() for ids in drawn]
