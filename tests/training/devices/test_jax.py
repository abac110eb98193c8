"""The rows and weights of each device of JAX."""

import re

import keras
import pytest
from support.small_models import new_model

from keras_transformer.errors import UserError
from keras_transformer.training.devices.jax import layout_map, shard_of


@pytest.mark.parametrize(
    "processes, devices, model_shards, expected",
    [
        (1, 1, 1, [(0, 1, 1)]),
        (1, 4, 2, [(0, 2, 2)]),
        (2, 2, 1, [(0, 2, 4), (2, 4, 4)]),
        (2, 2, 2, [(0, 1, 2), (1, 2, 2)]),
        # One copy of the weights over two processes: both have all rows.
        (2, 2, 4, [(0, 1, 1), (0, 1, 1)]),
        (4, 1, 2, [(0, 1, 2), (0, 1, 2), (1, 2, 2), (1, 2, 2)]),
    ],
)
def test_rows_of_every_process_by_hand(processes, devices, model_shards, expected):
    found = [shard_of(process, processes, devices, model_shards) for process in range(processes)]
    assert found == expected


@pytest.mark.parametrize("processes, devices, model_shards", [(1, 4, 3), (1, 2, 4), (2, 3, 2)])
def test_weights_over_devices_that_do_not_divide_are_refused(processes, devices, model_shards):
    with pytest.raises(UserError, match=f"model_shards={model_shards}"):
        shard_of(0, processes, devices, model_shards)


def test_heads_inner_units_and_embeddings_are_divided_and_nothing_else():
    mesh = keras.distribution.DeviceMesh((1, 2), ("batch", "model"), ["cpu:0", "cpu:1"])
    layouts = layout_map(mesh)
    found = {}
    for weight in new_model("all_of_opennmt").weights:
        name = re.sub(r"\w+_layer_\d+/", "", weight.path)
        if layout := layouts[weight.path]:
            found[re.sub("self_|cross_", "", name)] = layout.axes
    split_columns, split_rows = (None, "model"), ("model", None)
    assert found == {
        "source_embedding/embeddings": split_rows,
        "target_embedding/embeddings": split_rows,
        "target_embedding/output_embeddings": split_rows,
        "target_embedding/bias": ("model",),
        **{f"attention/{name}/kernel": split_columns for name in ("query", "key", "value")},
        **{f"attention/{name}/bias": ("model",) for name in ("query", "key", "value")},
        "attention/output/kernel": split_rows,
        "feed_forward/inner/kernel": split_columns,
        "feed_forward/inner/bias": ("model",),
        "feed_forward/outer/kernel": split_rows,
    }
