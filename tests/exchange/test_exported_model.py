"""What the writers of other formats need of a model: checks and weights."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
from support.contract import to_numpy
from support.parallel_text import SENTENCES
from support.small_models import LENGTH, small_model

from keras_transformer.data import Tokenizer
from keras_transformer.exchange.exported_model import (
    check_model,
    check_supported,
    position_table,
)
from keras_transformer.models import Transformer

V = 60
SIZES = {"num_layers": 1, "d_model": 4, "num_heads": 2, "d_ff": 4}


def test_only_models_with_their_own_tokenizer_are_written():
    tokenizer = Tokenizer.train(SENTENCES, vocabulary_size=V, joint=False)
    check_model(Transformer(V, target_vocabulary_size=V, **SIZES), tokenizer)
    with pytest.raises(ValueError, match="must be the model's tokenizer.*61, 60, 0.*60, 60, 0"):
        check_model(Transformer(61, target_vocabulary_size=V, **SIZES), tokenizer)
    with pytest.raises(ValueError, match="must be a Seq2Seq.*Received: model=<Sequential"):
        check_model(keras.Sequential(), tokenizer)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_quantized_models_are_refused():
    model = Transformer(V, **SIZES)
    model.quantize("int8")
    with pytest.raises(ValueError, match="must not be quantized"):
        check_model(model, Tokenizer.train(SENTENCES, vocabulary_size=V))


@pytest.mark.once
@pytest.mark.parametrize(
    "options, received",
    [
        ({"attention_pattern": "local", "attention_window": 3}, "model.attention_pattern='local'"),
        ({"position_encoding": "alibi"}, "model.position_encoding='alibi'"),
        ({"activation": "mish"}, "model.activation='mish'"),
    ],
)
def test_what_a_format_does_not_support_is_refused_by_name(options, received):
    rules = [("activation", lambda x: x.activation != "relu", "relu")]
    check_supported(Transformer(9, **SIZES, attention_pattern="full"), "It", rules)
    with pytest.raises(ValueError, match=f"It supports only .*Received: {received}"):
        check_supported(Transformer(9, **SIZES, **options), "It", rules)


@pytest.mark.once
def test_other_architectures_are_refused():
    model = SimpleNamespace(architecture="own")
    with pytest.raises(ValueError, match="It supports only the architecture transformer"):
        check_supported(model, "It")


def test_position_tables_are_sinusoids_or_weights_or_nothing():
    table = position_table(small_model())
    rates = 10_000.0 ** (-np.arange(0, 12, 2) / 12)
    angles = np.arange(LENGTH)[:, None] * rates
    np.testing.assert_allclose(table[:, 0::2], np.sin(angles), atol=1e-5)
    np.testing.assert_allclose(table[:, 1::2], np.cos(angles), atol=1e-5)
    model = small_model("learned")
    weights = to_numpy(model.positions.position_embeddings)
    np.testing.assert_array_equal(position_table(model), weights)
    assert position_table(small_model("rotary")) is position_table(small_model("none")) is None
