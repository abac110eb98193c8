"""Random inputs fit the model, and a layer becomes a model."""

import keras
import numpy as np
import pytest
from support.small_models import TARGET_V, V, new_model

from keras_transformer.portability.inputs import as_model, random_inputs


def test_ids_are_below_each_vocabulary_size_and_end_with_padding():
    a, b = (keras.Input((None,), dtype="int32", name=name) for name in "ab")
    x = keras.layers.Embedding(50, 2)(a) + keras.layers.Embedding(3, 2)(b)
    inputs = random_inputs(keras.Model({"a": a, "b": b}, x))
    assert inputs["b"].max() == 2 and 10 < inputs["a"].max() < 50
    assert all((ids[0, -2:] == 0).all() and ids[1:].all() for ids in inputs.values())


def test_a_transformer_gets_ids_of_both_vocabularies_and_its_own_padding():
    inputs = random_inputs(new_model("all_at_once"))
    assert all(ids.max() < min(V, TARGET_V) for ids in inputs.values())
    assert (inputs["source_ids"][0, -2:] == 5).all() and (inputs["source_ids"] == 5).sum() == 2


def test_inputs_have_the_dtypes_and_shapes_of_the_model():
    x = keras.Input((3, None), dtype="float16")
    mask = keras.Input((3,), batch_size=2, dtype="bool")
    found = random_inputs(keras.Model([x, mask], keras.ops.where(mask[..., None], x, 0)))
    assert [array.dtype for array in found] == ["float16", "bool"]
    assert found[0].shape[1] == 3 and found[1].shape == (2, 3)


def test_a_sequential_model_has_one_input():
    assert random_inputs(keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])).shape[
        1:
    ] == (4,)


def test_a_layer_becomes_a_model_with_its_arguments_by_name():
    x = np.ones((2, 3, 4), "float32")
    layer = keras.layers.MultiHeadAttention(2, 3)
    model = as_model(layer, {"query": x, "value": x})
    assert model.output_shape == (None, 3, 4)
    assert as_model(keras.layers.Dense(2), x).output_shape == (None, 3, 2)


def test_says_what_is_needed():
    with pytest.raises(ValueError, match="must be a Keras model or layer"):
        as_model("model.keras", None)
    with pytest.raises(ValueError, match="`inputs` must be given for a layer"):
        as_model(keras.layers.Dense(2), None)
    with pytest.raises(ValueError, match="that is not functional"):
        random_inputs(keras.Model())
