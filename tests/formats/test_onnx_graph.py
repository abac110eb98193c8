"""The graphs alone: what is in them, and that they compute what the layers compute."""

import numpy as np
import pytest
from support.contract import to_numpy
from support.small_models import inputs_of, new_model, small_model

onnx = pytest.importorskip("onnx", reason="onnx is an optional dependency")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is an optional dependency")

from keras_transformer.formats.onnx_graph import (  # noqa: E402
    ACTIVATIONS,
    encoder_graph,
    round_weights,
    step_graph,
)

BOS_ID = 2


def session(graph):
    return onnxruntime.InferenceSession(graph.SerializeToString())


def forced_logits(model, source_ids, target_ids):
    """Teacher-forced, one hypothesis a sentence, as the interface is documented."""
    encoder, step = session(encoder_graph(model)), session(step_graph(model, BOS_ID))
    names = [output.name for output in encoder.get_outputs()]
    feed = dict(zip(names, encoder.run(None, {"source_ids": source_ids}), strict=True))
    batch, heads = len(source_ids), model.num_heads
    d_v = model.d_model // heads
    for i in range(model.decoder.num_layers):
        for name, width in (("key", model.d_k or d_v), ("value", d_v)):
            feed[f"past_{name}_{i + 1}"] = np.zeros((batch, 1, heads, 0, width), "float32")
    logits = []
    for token_ids in target_ids.T:
        feed |= {
            "token_ids": token_ids[:, None],
            "parents": np.zeros((batch, 1), "int64"),
            "num_candidates": np.array([1]),
        }
        outputs = [output.name for output in step.get_outputs()]
        found = dict(zip(outputs, step.run(None, feed), strict=True))
        logits.append(found["logits"][:, 0])
        feed |= {f"past_{name}": found[name] for name in found if name[-1].isdigit()}
    return np.stack(logits, axis=1)


def assert_same_logits(model):
    inputs = inputs_of(model)
    ids = {name: ids.astype("int64") for name, ids in inputs.items()}
    is_real = inputs["target_ids"] != model.pad_id
    found, expected = forced_logits(model, **ids)[is_real], to_numpy(model(inputs))[is_real]
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)


QUICK = ("all_at_once", "learned", "binary", "all_of_opennmt")
SLOW = (
    "sinusoidal_half_split",
    "unscaled",
    "full_attention",
)


@pytest.mark.parametrize(
    "variant", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_forced_logits_are_those_of_the_model(variant):
    assert_same_logits(small_model(variant))


@pytest.mark.slow
def test_activations_are_those_of_keras():
    for activation in ACTIVATIONS:
        assert_same_logits(new_model(num_layers=1, activation=activation))


def test_witness_notices_another_epsilon():
    model = new_model(num_layers=1)
    model.decoder.layers[0].feed_forward_residual.norm.epsilon = 1e-3
    nodes = step_graph(model, BOS_ID).graph.node
    epsilons = [x.f for node in nodes for x in node.attribute if x.name == "epsilon"]
    np.testing.assert_allclose(epsilons, [1e-6, 1e-6, 1e-3], rtol=1e-6)


@pytest.mark.parametrize("graph_of", [encoder_graph, lambda model: step_graph(model, BOS_ID)])
def test_graphs_are_valid_and_without_control_flow(graph_of):
    graph = graph_of(small_model("all_at_once"))
    onnx.checker.check_model(graph, full_check=True)
    assert not {"If", "Loop", "Scan"} & {node.op_type for node in graph.graph.node}
    assert {entry.domain for entry in graph.opset_import} == {""}


def test_rounded_weights_are_the_nearest_of_255_steps_of_their_word_or_column():
    graph = step_graph(new_model(d_model=96, d_ff=67), BOS_ID)
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
    session(graph)
