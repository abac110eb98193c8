"""What every exporter checks and reads of a model."""

import keras
import numpy as np
import pytest
from keras import ops
from support.contract import to_numpy
from support.parallel_text import SENTENCES
from support.small_models import LENGTH, inputs_of, small_model
from support.small_models import new_model as new_small_model

from keras_transformer.data import Tokenizer
from keras_transformer.errors import UserError
from keras_transformer.export.source_model import (
    array,
    check_attention,
    check_is_free,
    check_model,
    in_float32,
    position_table,
)
from keras_transformer.models import Transformer

V = 60


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(SENTENCES, vocabulary_size=V, joint=False)


def new_model(vocabulary_size=V):
    sizes = {"num_layers": 1, "d_model": 4, "num_heads": 2, "d_ff": 4}
    return Transformer(vocabulary_size, target_vocabulary_size=V, **sizes)


def test_new_and_empty_folders_are_free(tmp_path):
    check_is_free(tmp_path / "new")
    check_is_free(tmp_path)
    (tmp_path / "note").write_text("mine")
    for used in (tmp_path, tmp_path / "note"):
        with pytest.raises(UserError, match=f"{used} is not empty"):
            check_is_free(used)


def test_only_transformers_with_their_own_tokenizer_are_exported(tokenizer):
    check_model(new_model(), tokenizer)
    with pytest.raises(ValueError, match="must be the one of the model.*61, 60, 0.*60, 60, 0"):
        check_model(new_model(61), tokenizer)
    with pytest.raises(ValueError, match="must be a Transformer. Received: model=<Sequential"):
        check_model(keras.Sequential(), tokenizer)


def test_arrays_are_float32_whatever_they_were():
    for dtype in ("bfloat16", "float32", "int32"):
        value = array(ops.cast([1, 2, 3], dtype))
        assert value.dtype == np.float32
        assert value.tolist() == [1, 2, 3]


def test_sinusoids_by_hand():
    table = position_table(small_model())
    rates = 10_000.0 ** (-np.arange(0, 12, 2) / 12)
    angles = np.arange(LENGTH)[:, None] * rates
    np.testing.assert_allclose(table[:, 0::2], np.sin(angles), atol=1e-5)
    np.testing.assert_allclose(table[:, 1::2], np.cos(angles), atol=1e-5)


def test_learned_positions_are_the_weights():
    model = small_model("learned")
    table = position_table(model)
    np.testing.assert_array_equal(table, to_numpy(model.positions.position_embeddings))


@pytest.mark.parametrize("variant", ["rotary", "none"])
def test_nothing_is_added_where_positions_are_elsewhere(variant):
    assert position_table(small_model(variant)) is None


def test_a_model_in_mixed_precision_gets_a_twin_in_float32():
    model = new_small_model()
    assert in_float32(model) is model
    half = new_small_model(dtype="mixed_bfloat16")
    half.set_weights(model.get_weights())
    twin = in_float32(half)
    inputs = inputs_of(model)
    np.testing.assert_allclose(to_numpy(twin(inputs)), to_numpy(model(inputs)), atol=1e-5)
    np.testing.assert_array_equal(position_table(half), position_table(model))


@pytest.mark.parametrize(
    "options, received",
    [
        ({"attention_pattern": "local", "attention_window": 3}, "model.attention_pattern='local'"),
        ({"position_encoding": "alibi"}, "model.position_encoding='alibi'"),
        ({"position_encoding": "t5"}, "model.position_encoding='t5'"),
    ],
)
def test_what_a_format_does_not_support_is_refused_by_name(options, received):
    sizes = {"num_layers": 1, "d_model": 4, "num_heads": 2, "d_ff": 4}
    check_attention(Transformer(9, **sizes), "It")
    check_attention(Transformer(9, **sizes, attention_pattern="full"), "It")
    with pytest.raises(ValueError, match=f"It does not support .*Received: {received}"):
        check_attention(Transformer(9, **sizes, **options), "It")
