"""Replicas drop other elements."""

import keras
import numpy as np
import pytest
from support.small_models import inputs_of, new_model

from keras_transformer.training import TransformerTrainer
from keras_transformer.training.distribution.replica_seeds import use_own_seeds


def outputs(replica):
    trainer = TransformerTrainer(new_model(dropout_rate=0.5))
    for variable in trainer.non_trainable_variables:
        if "seed" in variable.path:
            variable.assign([7, 0])
    if replica is not None:
        use_own_seeds(trainer, replica)
    inputs = inputs_of(trainer.model)
    return [keras.ops.convert_to_numpy(trainer(inputs, training=True)) for _ in range(2)]


@pytest.fixture(scope="module")
def alone():
    return outputs(replica=None)


def test_the_first_replica_is_as_if_alone(alone):
    np.testing.assert_array_equal(outputs(replica=0), alone)


@pytest.mark.parametrize("replica", [1, lambda: 2])
def test_others_draw_other_masks(replica, alone):
    for own in outputs(replica):
        for other in alone:
            assert np.abs(own - other).max() > 0.1


def test_a_replica_draws_the_same_again():
    np.testing.assert_array_equal(outputs(replica=3), outputs(replica=3))
