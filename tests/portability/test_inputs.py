"""Random inputs of functional models, and functional models of single layers."""

import keras
import numpy as np
import pytest
from support.small_models import TARGET_V, V, new_model

from keras_transformer import BertEncoder, LanguageModel, MaskedLanguageModel
from keras_transformer.layers import MultiHeadAttention
from keras_transformer.portability.inputs import (
    functional_model,
    load_inputs,
    random_inputs,
    save_inputs,
)

pytestmark = pytest.mark.once


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


def test_positions_of_masked_tokens_are_positions():
    encoder = BertEncoder(30, num_layers=1, d_model=4, num_heads=1, d_ff=4, max_length=9)
    inputs = random_inputs(MaskedLanguageModel(encoder))
    assert inputs["masked_positions"].max() < inputs["token_ids"].shape[1]
    assert inputs["token_ids"].max() > 10


def test_inputs_have_the_dtypes_and_shapes_of_the_model():
    x = keras.Input((3, None), dtype="float16")
    mask = keras.Input((3,), batch_size=2, dtype="bool")
    found = random_inputs(keras.Model([x, mask], keras.ops.where(mask[..., None], x, 0)))
    assert [array.dtype for array in found] == ["float16", "bool"]
    assert found[0].shape[1] == 3 and found[1].shape == (2, 3)


def test_a_call_of_a_layer_becomes_a_model_of_its_tensors():
    x = np.ones((2, 3, 8), "float32")
    layer = MultiHeadAttention(8, 2)
    model, inputs = functional_model(layer, query=x, use_causal_mask=True, padding_mask=None)
    assert len(model.inputs) == len(inputs) == 1
    x[:, -1] = 5.0
    (outputs,) = keras.tree.flatten(model.predict_on_batch([x]))
    np.testing.assert_allclose(outputs[:, :2], outputs[:, :1].repeat(2, axis=1), rtol=1e-5)
    assert functional_model(keras.layers.Dense(2), x)[0].outputs[0].shape == (2, 3, 2)


def test_inputs_of_a_model_that_is_not_functional_are_unknown():
    with pytest.raises(ValueError, match="that is not functional"):
        random_inputs(keras.Model())


def test_few_segments_include_that_of_padding_and_nested_embeddings_are_found():
    encoder = BertEncoder(20, 1, 8, 2, 16, max_length=9, num_segments=2)
    inputs = random_inputs(MaskedLanguageModel(encoder))
    assert inputs["token_ids"].max() > 2 and set(inputs["segment_ids"].ravel()) == {0, 1}
    one = BertEncoder(20, 1, 8, 2, 16, max_length=9, num_segments=1)
    assert not random_inputs(one)["segment_ids"].any()


def test_inputs_fit_the_longest_sequence_and_padding_is_a_valid_id():
    sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 16}
    assert random_inputs(LanguageModel(20, **sizes, max_length=4)).shape[1] == 4
    encoder = BertEncoder(20, **sizes, max_length=16, num_segments=2, pad_id=5)
    inputs = random_inputs(MaskedLanguageModel(encoder))
    assert (inputs["token_ids"][0, -2:] == 5).all()
    assert set(inputs["segment_ids"].ravel()) == {0, 1}
    assert set(inputs["masked_positions"][1:].ravel()) - {5}


def test_structures_of_arrays_are_written_and_read(tmp_path):
    save_inputs(tmp_path, {"b": np.ones(2), "a": [np.zeros((1, 3)), np.arange(4)]})
    found = load_inputs(tmp_path)
    assert found["a"][0].shape == (1, 3) and found["a"][1].tolist() == [0, 1, 2, 3]
    assert found["b"].tolist() == [1, 1]
