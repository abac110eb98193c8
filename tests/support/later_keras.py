"""What Keras 3.16 adds to its trainer on PyTorch once `torch.distributed` runs."""

import keras
import torch
from keras.src.backend.torch.trainer import TorchTrainer
from torch import distributed
from torch.nn.parallel import DistributedDataParallel


def _initialize_ddp(model):
    if distributed.is_initialized() and model.ddp_model is None:
        print("wrapped by Keras")
        object.__setattr__(model, "ddp_model", DistributedDataParallel(model))


def _after_wrapping(make):
    def wrap_and_make(model, force=False):
        model._initialize_ddp()
        return make(model, force)

    return wrap_and_make


def _step(model, data, training):
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
    y_pred = (model.ddp_model or model)(x, training=training)
    model.zero_grad()
    loss = model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=weights, training=training)
    model._loss_tracker.update_state(loss, sample_weight=len(keras.tree.flatten(x)[0]))
    if training:
        model.optimizer.scale_loss(loss).backward()
        gradients = [variable.value.grad for variable in model.trainable_weights]
        with torch.no_grad():
            model.optimizer.apply(gradients, model.trainable_weights)
    return model.compute_metrics(x, y, y_pred, sample_weight=weights)


def _get_metrics_result(model):
    sums = [(variable, variable.value.clone()) for variable in model.metrics_variables]
    if distributed.is_initialized():
        for _, value in sums:
            distributed.all_reduce(value)
    with keras.StatelessScope(state_mapping=sums):
        return super(TorchTrainer, model).get_metrics_result()


def install():
    """Changes the trainer of Keras to that of 3.16."""
    for name in ("make_train_function", "make_test_function"):
        setattr(TorchTrainer, name, _after_wrapping(getattr(TorchTrainer, name)))
    TorchTrainer.ddp_model = None
    TorchTrainer._initialize_ddp = _initialize_ddp
    TorchTrainer.train_step = lambda model, data: _step(model, data, training=True)
    TorchTrainer.test_step = lambda model, data: _step(model, data, training=False)
    TorchTrainer.get_metrics_result = _get_metrics_result
