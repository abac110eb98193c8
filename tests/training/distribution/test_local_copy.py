"""Callbacks see the weights of the model in training in another one."""

from contextlib import contextmanager

import keras
import numpy as np
from support.small_models import new_model

from keras_transformer.training import MaskedCrossentropy, SlicedLogitsTrainer, TransformerAdam
from keras_transformer.training.distribution.local_copy import OnLocalCopy


class Watcher(keras.callbacks.Callback):
    def __init__(self, is_alone):
        super().__init__()
        self.is_alone = is_alone
        self.seen = []

    def on_epoch_begin(self, epoch, logs=None):
        self.seen.append(("begin", epoch, self.params["steps"]))

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(("batch", batch))

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(("end", epoch, self.model, bool(self.is_alone)))


def test_callbacks_see_weights_and_optimizer_in_the_copy():
    trainer = SlicedLogitsTrainer(new_model(), MaskedCrossentropy(0.1))
    trainer.compile(TransformerAdam(0.1))
    trainer.optimizer.build(trainer.trainable_variables)
    trainer.optimizer.iterations.assign(7)
    copy = trainer.local_copy()
    assert copy.token_loss.label_smoothing == 0.1
    alone = []

    @contextmanager
    def be_alone():
        alone.append(True)
        yield
        alone.clear()

    watcher = Watcher(alone)
    callback = OnLocalCopy([watcher], copy, keras.ops.convert_to_numpy, be_alone)
    callback.set_params({"steps": 5})
    callback.set_model(trainer)
    callback.on_epoch_begin(2)
    callback.on_train_batch_begin(0)
    callback.on_epoch_end(2)
    assert watcher.seen == [("begin", 2, 5), ("batch", 0), ("end", 2, copy, True)]
    assert int(copy.optimizer.iterations) == 7
    for own, other in zip(copy.weights, trainer.weights, strict=True):
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (own, other)))


def test_processes_without_a_copy_read_along_and_call_nobody():
    trainer = SlicedLogitsTrainer(new_model())
    trainer.compile(TransformerAdam())
    trainer.optimizer.build(trainer.trainable_variables)
    watcher, read = Watcher([]), []
    callback = OnLocalCopy([watcher], None, read.append)
    callback.set_model(trainer)
    callback.on_epoch_end(0)
    assert len(read) == len(trainer.weights) + len(trainer.optimizer.variables)
    assert watcher.seen == []
