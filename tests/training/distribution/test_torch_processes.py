"""Processes of PyTorch: test_distribution.py tests the training."""

import numpy as np
import pytest

from keras_transformer.training.distribution.torch_processes import TorchProcesses

pytestmark = pytest.mark.once

torch = pytest.importorskip("torch")


@pytest.fixture
def alone():
    distribution = TorchProcesses()
    yield distribution
    torch.distributed.destroy_process_group()


def test_a_single_process_needs_no_launcher(alone):
    assert alone.is_chief
    assert alone.shard == (0, 1, 1)
    assert alone.of_chief(True)


def test_sums_keep_their_shapes(alone):
    tensors = [torch.arange(6.0).reshape(2, 3), torch.tensor(7.0), torch.ones(0)]
    for found, expected in zip(alone._sum(tensors), tensors, strict=True):
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
        assert found.shape == expected.shape
