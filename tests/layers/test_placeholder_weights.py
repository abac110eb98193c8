"""Weights of zeros where loading replaces them."""

from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
from support import small_models

from keras_transformer.layers import TokenEmbedding
from keras_transformer.layers.base import Dense
from keras_transformer.layers.saving import making_model, placeholder_weights
from keras_transformer.models import Transformer
from keras_transformer.models.base import in_float32
from keras_transformer.runs.checkpoints import load_model

pytestmark = pytest.mark.once


def is_zero():
    """Returns which of new layers have weights of zeros."""
    layers = Dense(3), TokenEmbedding(7, 3)
    for layer in layers:
        layer.build((None, 4, 4, 2))
    return [not np.any(layer.get_weights()[0]) for layer in layers]


def test_weights_are_zeros_within_the_context_and_in_its_thread_alone():
    with placeholder_weights(), making_model(Transformer), ThreadPoolExecutor(1) as other_thread:
        assert is_zero() == [True, True]
        assert other_thread.submit(is_zero).result() == [False, False]
    assert is_zero() == [False, False]


def test_the_seed_gives_the_weights_it_gives_to_keras():
    def weights(layer_class):
        keras.utils.set_random_seed(1)
        layer = layer_class(3, kernel_initializer="he_normal")
        layer.build((None, 2))
        return layer.get_weights()[0]

    np.testing.assert_array_equal(weights(Dense), weights(keras.layers.Dense))


def test_layers_of_a_users_model_keep_their_random_weights_as_it_may_not_save_them():
    class Users(Transformer):
        pass

    with placeholder_weights(), making_model(Users):
        assert is_zero() == [False, False]


def test_all_placeholders_are_replaced(tmp_path):
    model = small_models.new_model(dtype="mixed_bfloat16")
    model.save(tmp_path / "model.keras")
    for loaded in (load_model(tmp_path / "model.keras"), in_float32(model)):
        for found, expected in zip(loaded.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(found, expected)
