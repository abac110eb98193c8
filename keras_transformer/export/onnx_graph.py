"""Builds two ONNX graphs of a Transformer: the encoder, and one step of the decoder.

The graphs are built node by node, not traced. So they have dynamic axes and are the same on every
backend. The functions below add nodes to a `_Graph`. Strings among their arguments and results are
names of values in this graph.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from keras import ops
from onnx import TensorProto, helper, numpy_helper

from keras_transformer._backend.operations import MASKED_SCORE
from keras_transformer.exchange.source_model import Rule, array, position_table
from keras_transformer.layers import RotaryPositionalEncoding
from keras_transformer.layers.positions.positional_encoding import sinusoid_angles
from keras_transformer.layers.sublayers import BatchNormalization
from keras_transformer.models import Transformer

# Operator set 17 introduced LayerNormalization, 20 introduced Gelu.
OPERATOR_SET, IR_VERSION = 20, 10

# Maps activations of Keras to ONNX operators. "Gelu" is the exact function, as in Keras.
ACTIVATIONS = {
    "relu": ("Relu",),
    "gelu": ("Gelu",),
    "silu": ("Sigmoid", "Mul"),
    "swish": ("Sigmoid", "Mul"),
    "sigmoid": ("Sigmoid",),
    "tanh": ("Tanh",),
    "elu": ("Elu",),
    "softplus": ("Softplus",),
}
RULES: tuple[Rule, ...] = (
    (
        "activation",
        lambda x: x.activation not in ACTIVATIONS,
        f"the activations {', '.join(ACTIVATIONS)}",
    ),
)

# Names of two values for rotary positions: the cosines, and the sines with signs. Otherwise None.
Rotation = tuple[str, str] | None


def encoder_graph(model: Transformer) -> onnx.ModelProto:
    """Returns the graph of the encoder (see `encoder.onnx` in the docstring of `export_onnx`)."""
    graph = _Graph("encoder")
    source_ids = graph.input("source_ids", TensorProto.INT64, ("batch", "source_length"))
    mask = graph.add("Equal", source_ids, np.array(model.pad_id, "int64"))
    mask = graph.add("Not", graph.add("Unsqueeze", mask, np.array([1, 2])))
    length = graph.add("Shape", source_ids, start=1, end=2)

    def first_rows(table: np.ndarray) -> str:
        return graph.add("Slice", table, np.array([0]), length, np.array([0]))

    x = _embed(graph, source_ids, model.source_embedding, model, first_rows)
    rotation = _rotation(model, first_rows)
    for layer in model.encoder.layers:
        attended = _encoder_self_attention(
            graph, _sublayer_input(graph, x, layer.self_attention_residual), layer, mask, rotation
        )
        x = _add_residual(graph, x, attended, layer.self_attention_residual)
        x = _feed_forward(graph, x, layer)
    if model.norm_first:
        x = _norm(graph, x, model.encoder.norm)
    graph.output("source_mask", mask, TensorProto.BOOL, ("batch", 1, 1, "source_length"))
    _project_memory(graph, x, model)
    return graph.to_model()


def step_graph(model: Transformer, bos_id: int) -> onnx.ModelProto:
    """Returns the graph of a decoder step (see `step.onnx` in the docstring of `export_onnx`)."""
    graph = _Graph("step")
    token_ids = graph.input("token_ids", TensorProto.INT64, ("batch", "beams"))
    parents = graph.input("parents", TensorProto.INT64, ("batch", "beams"))
    num_candidates = graph.input("num_candidates", TensorProto.INT64, (1,))
    mask = graph.input("source_mask", TensorProto.BOOL, ("batch", 1, 1, "source_length"))
    memories, pasts = _inputs(graph, model, "memory_"), _inputs(graph, model, "past_")
    position = graph.add("Shape", pasts[0][0], start=3, end=4)
    parents = graph.add("Unsqueeze", parents, np.array([2]))

    def this_row(table: np.ndarray) -> str:
        return graph.add("Gather", table, position)

    x = _embed(graph, token_ids, model.target_embedding, model, this_row)
    rotation = _rotation(model, this_row)
    for i, layer in enumerate(model.decoder.layers):
        entered = _sublayer_input(graph, x, layer.self_attention_residual)
        queries, *newest = _project_beams(graph, entered, layer.self_attention, rotation)
        keys, values = (
            graph.add("Concat", graph.add("GatherND", past, parents, batch_dims=1), new, axis=3)
            for past, new in zip(pasts[i], newest, strict=True)
        )
        _outputs(graph, model, "", i + 1, keys, values)
        attended = _decoder_self_attention(graph, queries, keys, values, layer.self_attention)
        x = _add_residual(graph, x, attended, layer.self_attention_residual)
        entered = _sublayer_input(graph, x, layer.cross_attention_residual)
        keys, values = memories[i]
        attended = _cross_attention(graph, entered, keys, values, mask, layer.cross_attention)
        x = _add_residual(graph, x, attended, layer.cross_attention_residual)
        x = _feed_forward(graph, x, layer)
    if model.norm_first:
        x = _norm(graph, x, model.decoder.norm)
    _predict(graph, x, token_ids, num_candidates, model, bos_id)
    return graph.to_model()


class _Graph:
    """Collects the nodes and constants of an ONNX graph."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.names: dict[str, str] = {}  # maps names of values to their names as graph outputs

    def add(self, operator: str, *inputs: str | np.ndarray, **attributes: Any) -> str:
        """Adds a node and returns the name of its output. Arrays become constants of the graph."""
        return self.add_several(operator, 1, *inputs, **attributes)[0]

    def add_several(
        self, operator: str, count: int, *inputs: str | np.ndarray, **attributes: Any
    ) -> list[str]:
        """Adds a node with `count` outputs, and returns the names of the outputs (see `add`)."""
        names = [x if isinstance(x, str) else self._constant(x) for x in inputs]
        outputs = [f"{operator}_{len(self.nodes)}_{i}" for i in range(count)]
        self.nodes.append(helper.make_node(operator, names, outputs, **attributes))
        return outputs

    def _constant(self, value: np.ndarray) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def input(self, name: str, dtype: int, shape: Sequence[str | int]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name: str, value: str, dtype: int, shape: Sequence[str | int]) -> None:
        """Makes `value` an output of the graph. The name of the output is `name`."""
        self.outputs.append(helper.make_tensor_value_info(name, dtype, shape))
        self.names[value] = name

    def to_model(self) -> onnx.ModelProto:
        for node in self.nodes:
            for names in (node.input, node.output):
                names[:] = [self.names.get(value, value) for value in names]
        graph = helper.make_graph(
            self.nodes, self.name, self.inputs, self.outputs, initializer=self.constants
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPERATOR_SET)],
            ir_version=IR_VERSION,
            producer_name="keras_transformer",
        )


# --- Interfaces ----------------------------------------------------------------------------------


def _shapes(model: Transformer, prefix: str, number: int) -> dict[str, tuple[str | int, ...]]:
    """Returns a dict from tensor names to shapes, for keys and values of decoder layer `number`.

    `prefix` is "memory_" for cross-attention. For the cache of self-attention, `prefix` is "past_"
    before the step and "" after the step.
    """
    attention = model.decoder.layers[0].self_attention
    heads, d_k, d_v = attention.num_heads, attention.d_k, attention.d_v
    past, cache = ("past_beams", heads, "past_length"), ("beams", heads, "length")
    key, value = {
        "memory_": ((heads, d_k, "source_length"), (heads, "source_length", d_v)),
        "past_": ((*past, d_k), (*past, d_v)),
        "": ((*cache, d_k), (*cache, d_v)),
    }[prefix]
    return {f"{prefix}key_{number}": ("batch", *key), f"{prefix}value_{number}": ("batch", *value)}


def _inputs(graph: _Graph, model: Transformer, prefix: str) -> list[list[str]]:
    """Creates two inputs per decoder layer, for keys and for values, and returns their names."""
    shapes = [_shapes(model, prefix, i + 1) for i in range(model.decoder.num_layers)]
    return [
        [graph.input(name, TensorProto.FLOAT, shape) for name, shape in layer.items()]
        for layer in shapes
    ]


def _outputs(graph: _Graph, model: Transformer, prefix: str, number: int, *values: str) -> None:
    for (name, shape), value in zip(_shapes(model, prefix, number).items(), values, strict=True):
        graph.output(name, value, TensorProto.FLOAT, shape)


def _project_memory(graph: _Graph, memory: str, model: Transformer) -> None:
    for i, layer in enumerate(model.decoder.layers):
        attention = layer.cross_attention
        keys = _split_heads(graph, _linear(graph, memory, attention.key_projection), attention)
        keys = graph.add("Transpose", keys, perm=(0, 1, 3, 2))
        values = _split_heads(graph, _linear(graph, memory, attention.value_projection), attention)
        _outputs(graph, model, "memory_", i + 1, keys, values)


def _predict(
    graph: _Graph, x: str, token_ids: str, num_candidates: str, model: Transformer, bos_id: int
) -> None:
    """Adds outputs for the logits and for the most probable next tokens.

    The log-probability of padding and bos is minus infinity.
    """
    embeddings = array(model.target_embedding.embeddings)
    vocabulary_size = len(embeddings)
    rows = graph.add("Reshape", x, np.array([-1, model.d_model]))
    logits = graph.add("Gemm", rows, embeddings, transB=1)
    beams = graph.add("Shape", token_ids)
    shape = graph.add("Concat", beams, np.array([vocabulary_size]), axis=0)
    logits = graph.add("Reshape", logits, shape)
    forbidden = np.zeros(vocabulary_size, "float32")
    forbidden[[model.pad_id, bos_id]] = -np.inf
    # TopK of the logits, minus their ReduceLogSumExp, would need less memory, but is much slower in
    # onnxruntime.
    allowed = graph.add("Add", graph.add("LogSoftmax", logits, axis=-1), forbidden)
    values, ids = graph.add_several("TopK", 2, allowed, num_candidates, axis=-1)
    shape_of_candidates = ("batch", "beams", "candidates")
    graph.output("logits", logits, TensorProto.FLOAT, ("batch", "beams", vocabulary_size))
    graph.output("candidate_log_probabilities", values, TensorProto.FLOAT, shape_of_candidates)
    graph.output("candidate_ids", ids, TensorProto.INT64, shape_of_candidates)


# --- Layers --------------------------------------------------------------------------------------


def _embed(graph: _Graph, ids: str, embedding: Any, model: Transformer, rows: Any) -> str:
    """Returns embeddings plus positions. The function `rows` selects rows of the position table."""
    x = graph.add("Gather", array(embedding.embeddings), ids)
    x = graph.add("Mul", x, np.array(math.sqrt(model.d_model), "float32"))
    if getattr(model.positions, "concatenate", False):
        # [x; features] W = x W_x + features W_features. `position_table` returns the last term.
        x = graph.add("MatMul", x, array(model.positions.projection.kernel)[: model.d_model])
    table = position_table(model)
    return x if table is None else graph.add("Add", x, rows(table))


def _rotation(model: Transformer, rows: Any) -> Rotation:
    if not isinstance(model.positions, RotaryPositionalEncoding):
        return None
    angles = sinusoid_angles(model.max_length, model.decoder.layers[0].self_attention.d_k)
    cosines, sines = (np.repeat(array(f(angles)), 2, axis=-1) for f in (ops.cos, ops.sin))
    sines[:, 0::2] *= -1
    return rows(cosines), rows(sines)


def _rotate(graph: _Graph, heads: str, rotation: Rotation, width: int) -> str:
    """Rotates each pair of features 2i and 2i + 1, or does nothing if `rotation` is None."""
    if rotation is None:
        return heads
    cosines, sines = rotation
    partners = graph.add("Gather", heads, np.arange(width) ^ 1, axis=-1)
    return graph.add("Add", graph.add("Mul", heads, cosines), graph.add("Mul", partners, sines))


def _encoder_self_attention(
    graph: _Graph, x: str, layer: Any, mask: str, rotation: Rotation
) -> str:
    """Returns the encoder's self-attention `(B, S, D)` for inputs `x` `(B, S, D)`."""
    attention = layer.self_attention
    queries, keys, values = (
        _split_heads(graph, part, attention) for part in _project(graph, x, attention)
    )
    queries, keys = (_rotate(graph, part, rotation, attention.d_k) for part in (queries, keys))
    keys = graph.add("Transpose", keys, perm=(0, 1, 3, 2))
    heads = _attention(graph, queries, keys, values, mask, attention)
    return _join_heads(graph, heads, attention)


def _project_beams(graph: _Graph, x: str, attention: Any, rotation: Rotation) -> list[str]:
    """Returns queries, keys and values `(B, N, H, 1, K)` of N hypotheses at the new position."""
    shape = np.array([0, 0, attention.num_heads, 1, -1])
    parts = [graph.add("Reshape", part, shape) for part in _project(graph, x, attention)]
    return [*(_rotate(graph, part, rotation, attention.d_k) for part in parts[:2]), parts[2]]


def _decoder_self_attention(
    graph: _Graph, queries: str, keys: str, values: str, attention: Any
) -> str:
    """Returns the decoder's self-attention `(B, N, D)` for the new position of N hypotheses."""
    keys = graph.add("Transpose", keys, perm=(0, 1, 2, 4, 3))
    heads = _attention(graph, queries, keys, values, None, attention)
    joined = graph.add("Reshape", heads, np.array([0, 0, attention.d_model]))
    return _linear(graph, joined, attention.output_projection)


def _cross_attention(
    graph: _Graph, x: str, keys: str, values: str, mask: str, attention: Any
) -> str:
    queries = _split_heads(graph, _linear(graph, x, attention.query_projection), attention)
    heads = _attention(graph, queries, keys, values, mask, attention)
    return _join_heads(graph, heads, attention)


def _attention(
    graph: _Graph, queries: str, keys: str, values: str, mask: str | None, attention: Any
) -> str:
    """Returns scaled dot-product attention (equation 1). `keys` have the shape `(..., K, S)`."""
    if attention.use_scale:
        scale = np.array(1.0 / math.sqrt(attention.d_k), "float32")
        queries = graph.add("Mul", queries, scale)
    scores = graph.add("MatMul", queries, keys)
    if mask is not None:
        scores = graph.add("Where", mask, scores, np.array(MASKED_SCORE, "float32"))
    return graph.add("MatMul", graph.add("Softmax", scores, axis=-1), values)


def _project(graph: _Graph, x: str, attention: Any) -> list[str]:
    """Returns queries, keys and values `(..., H * K)`, computed by one matrix product."""
    projections = (attention.query_projection, attention.key_projection, attention.value_projection)
    widths = np.array([projection.units for projection in projections])
    return graph.add_several("Split", 3, _linear(graph, x, *projections), widths, axis=-1)


def _split_heads(graph: _Graph, x: str, attention: Any) -> str:
    """Reshapes `(B, T, H * K)` to `(B, H, T, K)`."""
    shape = np.array([0, 0, attention.num_heads, -1])
    return graph.add("Transpose", graph.add("Reshape", x, shape), perm=(0, 2, 1, 3))


def _join_heads(graph: _Graph, heads: str, attention: Any) -> str:
    """Reshapes `(B, H, T, K)` to `(B, T, D)` and applies the output projection."""
    heads = graph.add("Transpose", heads, perm=(0, 2, 1, 3))
    joined = graph.add("Reshape", heads, np.array([0, 0, attention.d_model]))
    return _linear(graph, joined, attention.output_projection)


def _feed_forward(graph: _Graph, x: str, layer: Any) -> str:
    inner = _linear(
        graph, _sublayer_input(graph, x, layer.feed_forward_residual), layer.feed_forward.inner
    )
    activated = inner
    for operator in ACTIVATIONS[layer.activation]:
        activated = graph.add(operator, *([inner] if operator == "Mul" else []), activated)
    outer = _linear(graph, activated, layer.feed_forward.outer)
    return _add_residual(graph, x, outer, layer.feed_forward_residual)


def _sublayer_input(graph: _Graph, x: str, residual: Any) -> str:
    return _norm(graph, x, residual.norm) if residual.norm_first else x


def _add_residual(graph: _Graph, x: str, output: str, residual: Any) -> str:
    total = graph.add("Add", x, output)
    return total if residual.norm_first else _norm(graph, total, residual.norm)


def _norm(graph: _Graph, x: str, layer: Any) -> str:
    if isinstance(layer, BatchNormalization):
        scale = array(layer.gamma) / np.sqrt(array(layer.moving_variance) + layer.epsilon)
        shift = array(layer.beta) - scale * array(layer.moving_mean)
        return graph.add("Add", graph.add("Mul", x, scale), shift)
    return graph.add(
        "LayerNormalization", x, array(layer.gamma), array(layer.beta), epsilon=layer.epsilon
    )


def _linear(graph: _Graph, x: str, *layers: Any) -> str:
    """Applies linear layers to `x` by one matrix product, and returns the concatenated outputs."""
    kernel = np.concatenate([array(layer.kernel) for layer in layers], axis=-1)
    bias = np.concatenate([array(layer.bias) for layer in layers])
    return graph.add("Add", graph.add("MatMul", x, kernel), bias)
