"""The graphs alone: what is in them. test_onnx.py has what they compute."""

import numpy as np
import pytest
from support.small_models import new_model, small_model

onnx = pytest.importorskip("onnx", reason="onnx is an optional dependency")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is an optional dependency")

from keras_transformer.formats.onnx_graph import (  # noqa: E402
    encoder_graph,
    round_weights,
    step_graph,
)


def test_witness_notices_another_epsilon():
    model = new_model(num_layers=1)
    model.decoder.layers[0].feed_forward_residual.norm.epsilon = 1e-3
    nodes = step_graph(model).graph.node
    epsilons = [x.f for node in nodes for x in node.attribute if x.name == "epsilon"]
    np.testing.assert_allclose(epsilons, [1e-6, 1e-6, 1e-3], rtol=1e-6)


@pytest.mark.parametrize("graph_of", [encoder_graph, step_graph])
def test_graphs_are_valid_and_without_control_flow(graph_of):
    graph = graph_of(small_model("all_at_once"))
    onnx.checker.check_model(graph, full_check=True)
    assert not {"If", "Loop", "Scan"} & {node.op_type for node in graph.graph.node}
    assert {entry.domain for entry in graph.opset_import} == {""}


def test_rounded_weights_are_the_nearest_of_255_steps_of_their_word_or_column():
    graph = step_graph(new_model(d_model=96, d_ff=67))
    whole = {x.name: onnx.numpy_helper.to_array(x) for x in graph.graph.initializer}
    round_weights(graph)
    parts = {x.name: onnx.numpy_helper.to_array(x) for x in graph.graph.initializer}
    names = whole.keys() - parts.keys()
    assert {whole[name].shape for name in names} >= {(96, 67), (67, 96), (13, 96)}
    for name in names:
        axis = int(len(whole[name]) < 67)  # 0: columns of kernels, 1: words and positions
        steps = np.abs(whole[name]).max(axis, keepdims=True) / 127
        found = parts[f"{name}_int8"] * parts[f"{name}_scale"]
        assert np.all(np.abs(found - whole[name]) <= 0.501 * steps)
    onnxruntime.InferenceSession(graph.SerializeToString())
