"""The processes of TensorFlow."""

from types import SimpleNamespace

import pytest

from keras_transformer.training.devices.tensorflow import _rank


@pytest.mark.parametrize(
    "cluster, task_type, task_id, expected",
    [
        ({"worker": ["a:1", "b:1"]}, "worker", 0, 0),
        ({"worker": ["a:1", "b:1"]}, "worker", 1, 1),
        ({"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "chief", 0, 0),
        ({"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "worker", 1, 2),
    ],
)
def test_a_chief_comes_before_the_workers(cluster, task_type, task_id, expected):
    specification = SimpleNamespace(as_dict=lambda: cluster)
    resolver = SimpleNamespace(
        cluster_spec=lambda: specification, task_type=task_type, task_id=task_id
    )
    assert _rank(resolver) == expected
