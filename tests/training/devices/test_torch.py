"""The processes of PyTorch."""

import keras
import pytest

from keras_transformer.training.devices.torch import TorchProcesses


def test_a_model_without_weights_is_refused_by_processes():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("adam", "mse")
    with (
        pytest.raises(ValueError, match="The model must be built"),
        TorchProcesses.fitting(object(), model),
    ):
        pass


def test_models_are_not_wrapped_as_keras_wraps_them_from_3_16_on():
    torch = pytest.importorskip("torch")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model._initialize_ddp = lambda: pytest.fail("wrapped by Keras")
    with TorchProcesses().fitting(model):
        model._initialize_ddp()
        assert model.ddp_model is None
    torch.distributed.destroy_process_group()


def test_a_single_process_needs_no_launcher_and_sums_keep_their_shapes():
    torch = pytest.importorskip("torch")
    alone = TorchProcesses()
    assert alone.is_chief
    assert alone.shard == (0, 1, 1)
    assert alone.of_chief(True)
    tensors = [torch.arange(6.0).reshape(2, 3), torch.tensor(7.0), torch.ones(0)]
    found = alone._sum(tensors)
    torch.distributed.destroy_process_group()
    torch.testing.assert_close(list(found), tensors)
