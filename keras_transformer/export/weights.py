"""What all exporters read of a model, as NumPy arrays."""

from typing import Any

import numpy as np
from keras import ops

from keras_transformer.layers import PositionalEncoding
from keras_transformer.layers.positions.positional_encoding import new_position_encoding
from keras_transformer.models import Transformer


def array(tensor: Any) -> np.ndarray:
    """Returns a weight or tensor of any dtype and backend as float32."""
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))


def in_float32(model: Transformer) -> Transformer:
    """Returns a model that computes with the same weights in float32: itself if it does."""
    if model.dtype_policy.compute_dtype == "float32":
        return model
    exact = Transformer.from_config({**model.get_config(), "dtype": "float32"})
    exact.set_weights(model.get_weights())
    return exact


def position_table(model: Transformer) -> np.ndarray | None:
    """Returns what the model adds to embeddings at each position that it can stand at.

    Of a model that concatenates positions it is what the projection makes of them.

    Args:
        model: Of any dtype policy; the table is computed in float32.

    Returns:
        float32 `(model.max_length, D)`, or None where nothing is added.
    """
    if type(model.positions).call is PositionalEncoding.call:
        return None
    sizes = {"max_length": model.max_length}
    positions = new_position_encoding(model.position_encoding, sizes, dtype="float32")
    positions.build((None, None, model.d_model))
    positions.set_weights(model.positions.get_weights())
    return array(positions(ops.zeros((1, model.max_length, model.d_model)))[0])
