"""What every exporter checks and reads of a model."""

from pathlib import Path
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.errors import UserError
from keras_transformer.layers import PositionalEncoding
from keras_transformer.models import Transformer


def check_is_free(directory: str | Path) -> None:
    """Checks that a folder does not exist or is empty.

    Raises:
        UserError: If it exists and is not an empty folder.
    """
    directory = Path(directory)
    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise UserError(f"{directory} is not empty: remove it, or name another folder")


def check_model(model: Transformer, tokenizer: Tokenizer) -> None:
    """Checks that a model can be exported with a tokenizer.

    Raises:
        ValueError: If `model` is not a `Transformer` or is quantized, or `tokenizer` belongs to
            another model.
    """
    if not isinstance(model, Transformer):
        raise ValueError(f"`model` must be a Transformer. Received: model={model}")
    if any(weight.dtype == "int8" for weight in model.weights):
        raise ValueError(
            "`model` must not be quantized; use the exporter's `quantization` instead. "
            f"Received: model={model}"
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
    """Checks that a format without attention patterns and score biases supports a model.

    Raises:
        ValueError: If its self-attention leaves positions out or adds a bias to the scores.
    """
    if model.attention_pattern not in (None, "full"):
        raise ValueError(
            f"{format} does not support local or strided attention; a SavedModel does. "
            f"Received: model.attention_pattern={model.attention_pattern!r}"
        )
    if model.positions.has_score_bias:
        raise ValueError(
            f"{format} does not support position encodings that add to the scores; a SavedModel "
            f"does. Received: model.position_encoding={model.position_encoding!r}"
        )


def array(tensor: Any) -> np.ndarray:
    """Returns a weight or tensor of any dtype and backend as float32."""
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))


def in_float32(model: Transformer) -> Transformer:
    """Returns the model itself if it computes in float32, else a float32 copy of it."""
    if model.dtype_policy.compute_dtype == "float32":
        return model
    exact = Transformer.from_config({**model.get_config(), "dtype": "float32"})
    exact.set_weights(model.get_weights())
    return exact


def position_table(model: Transformer) -> np.ndarray | None:
    """Returns the vectors that the model adds to the embeddings, for every position.

    For a model that concatenates positions, these are the projected positions.

    Args:
        model: A model of any dtype policy; the table is computed in float32.

    Returns:
        float32 `(model.max_length, D)`, or None if the model adds nothing.
    """
    if type(model.positions).call is PositionalEncoding.call:
        return None
    positions = type(model.positions).from_config(
        {**model.positions.get_config(), "dtype": "float32"}
    )
    positions.build((None, None, model.d_model))
    positions.set_weights(model.positions.get_weights())
    return array(positions(ops.zeros((1, model.max_length, model.d_model)))[0])
