"""Builds two ONNX graphs of a Transformer: the encoder, and one step of the decoder.

The graphs are built node by node, not traced. So they have dynamic axes and are the same on every
backend. Methods of `_Graph` add nodes. Strings among their arguments and results are names of
values in the graph.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import onnx
from keras import ops
from onnx import TensorProto, helper, numpy_helper

from keras_transformer._backend.operations import MASKED_SCORE
from keras_transformer.data.vocabulary import BOS_ID
from keras_transformer.formats.exported_model import Rule, array, position_table
from keras_transformer.layers import DecoderLayer, MultiHeadAttention, RotaryPositionalEncoding
from keras_transformer.layers.positions.positional_encoding import sinusoid_angles
from keras_transformer.models import Transformer

# Operator set 17 introduced LayerNormalization, 20 introduced Gelu.
OPERATOR_SET, IR_VERSION = 20, 10

# A constant of less than a page, in bytes, is stored in its graph, a larger one in another file.
PAGE = 4096

# Maps activations of Keras to ONNX operators. "Gelu" is the exact function, as in Keras.
ACTIVATIONS = {
    "relu": ("Relu",),
    "gelu": ("Gelu",),
    **dict.fromkeys(("silu", "swish"), ("Sigmoid", "Mul")),
    "sigmoid": ("Sigmoid",),
    "tanh": ("Tanh",),
    "elu": ("Elu",),
    "softplus": ("Softplus",),
}
_SUPPORTED = f"the activations {', '.join(ACTIVATIONS)}"
RULES: tuple[Rule, ...] = (("activation", lambda x: x.activation not in ACTIVATIONS, _SUPPORTED),)

# Names of two values for rotary positions: the cosines, and the sines with signs. Otherwise None.
Rotation = tuple[str, str] | None


def encoder_graph(model: Transformer) -> onnx.ModelProto:
    """Returns the graph of the encoder (`encoder.onnx` in docs/how-to/export-onnx.md)."""
    graph = _Graph("encoder", model)
    source_ids = graph.input("source_ids", TensorProto.INT64, ("batch", "source_length"))
    mask = graph.add("Equal", source_ids, np.array(model.pad_id, "int64"))
    mask = graph.add("Not", graph.add("Unsqueeze", mask, np.array([1, 2])))
    length = graph.add("Shape", source_ids, start=1, end=2)
    x, rotation = graph.embed(
        source_ids,
        model.source_embedding,
        lambda table: graph.add("Slice", table, np.array([0]), length, np.array([0])),
    )
    for layer in model.encoder.layers:
        attention, residual = layer.self_attention, layer.self_attention_residual
        parts = graph.project(graph.sublayer_input(x, residual), attention)
        queries, keys, values = (graph.split_heads(part) for part in parts)
        queries, keys = (graph.rotate(part, rotation) for part in (queries, keys))
        keys = graph.add("Transpose", keys, perm=(0, 1, 3, 2))
        x = graph.add_residual(x, graph.attend(queries, keys, values, attention, mask), residual)
        x = graph.feed_forward(x, layer)
    if model.norm_first:
        x = graph.norm(x, model.encoder.norm)
    graph.output("source_mask", mask, TensorProto.BOOL, ("batch", 1, 1, "source_length"))
    for i, layer in enumerate(model.decoder.layers):
        attention = layer.cross_attention
        keys = graph.split_heads(graph.linear(x, attention.key_projection))
        keys = graph.add("Transpose", keys, perm=(0, 1, 3, 2))
        values = graph.split_heads(graph.linear(x, attention.value_projection))
        for (name, shape), value in zip(graph.shapes("memory_", i), (keys, values), strict=True):
            graph.output(name, value, TensorProto.FLOAT, shape)
    return graph.to_model()


def step_graph(model: Transformer) -> onnx.ModelProto:
    """Returns the graph of a decoder step (`step.onnx` in docs/how-to/export-onnx.md)."""
    graph = _Graph("step", model)
    token_ids = graph.input("token_ids", TensorProto.INT64, ("batch", "beams"))
    parents = graph.input("parents", TensorProto.INT64, ("batch", "beams"))
    num_candidates = graph.input("num_candidates", TensorProto.INT64, (1,))
    mask = graph.input("source_mask", TensorProto.BOOL, ("batch", 1, 1, "source_length"))
    memories, pasts = (
        [
            [graph.input(name, TensorProto.FLOAT, shape) for name, shape in graph.shapes(prefix, i)]
            for i in range(model.decoder.num_layers)
        ]
        for prefix in ("memory_", "past_")
    )
    position = graph.add("Shape", pasts[0][0], start=3, end=4)
    parents = graph.add("Unsqueeze", parents, np.array([2]))
    x, rotation = graph.embed(
        token_ids, model.target_embedding, lambda table: graph.add("Gather", table, position)
    )
    for i, layer in enumerate(model.decoder.layers):
        past = [graph.add("GatherND", each, parents, batch_dims=1) for each in pasts[i]]
        x, *cache = _decoder_layer(graph, x, layer, past, memories[i], mask, rotation)
        for (name, shape), value in zip(graph.shapes("", i), cache, strict=True):
            graph.output(name, value, TensorProto.FLOAT, shape)
    if model.norm_first:
        x = graph.norm(x, model.decoder.norm)
    _predict(graph, x, token_ids, num_candidates)
    return graph.to_model()


def _decoder_layer(
    graph: "_Graph",
    x: str,
    layer: DecoderLayer,
    past: Sequence[str],
    memory: Sequence[str],
    mask: str,
    rotation: Rotation,
) -> tuple[str, str, str]:
    """Returns the output `(B, N, D)`, and the keys and values of self-attention."""
    attention, residual = layer.self_attention, layer.self_attention_residual
    shape = np.array([0, 0, attention.num_heads, 1, -1])
    parts = graph.project(graph.sublayer_input(x, residual), attention)
    queries, key, value = (graph.add("Reshape", part, shape) for part in parts)
    queries, key = (graph.rotate(part, rotation) for part in (queries, key))
    keys, values = (
        graph.add("Concat", *pair, axis=3) for pair in zip(past, (key, value), strict=True)
    )
    transposed = graph.add("Transpose", keys, perm=(0, 1, 2, 4, 3))
    x = graph.add_residual(x, graph.attend(queries, transposed, values, attention), residual)
    attention, residual = layer.cross_attention, layer.cross_attention_residual
    queries = graph.linear(graph.sublayer_input(x, residual), attention.query_projection)
    attended = graph.attend(graph.split_heads(queries), memory[0], memory[1], attention, mask)
    return graph.feed_forward(graph.add_residual(x, attended, residual), layer), keys, values


def _predict(graph: "_Graph", x: str, token_ids: str, num_candidates: str) -> None:
    """Adds outputs for the logits and for the most probable next tokens, never padding or bos."""
    matrix, bias = graph.model.output_weights()
    vocabulary_size = matrix.shape[0]
    rows = graph.add("Reshape", x, np.array([-1, graph.model.d_model]))
    projection = [array(x) for x in (matrix, bias) if x is not None]
    logits = graph.add("Gemm", rows, *projection, transB=1)
    beams = graph.add("Shape", token_ids)
    shape = graph.add("Concat", beams, np.array([vocabulary_size]), axis=0)
    logits = graph.add("Reshape", logits, shape)
    forbidden = np.zeros(vocabulary_size, "float32")
    forbidden[[graph.model.pad_id, BOS_ID]] = -np.inf
    # TopK of the logits, minus their ReduceLogSumExp, would need less memory, but is much slower in
    # onnxruntime.
    allowed = graph.add("Add", graph.add("LogSoftmax", logits, axis=-1), forbidden)
    values, ids = graph.add_several("TopK", 2, allowed, num_candidates, axis=-1)
    shape_of_candidates = ("batch", "beams", "candidates")
    graph.output("logits", logits, TensorProto.FLOAT, ("batch", "beams", vocabulary_size))
    graph.output("candidate_log_probabilities", values, TensorProto.FLOAT, shape_of_candidates)
    graph.output("candidate_ids", ids, TensorProto.INT64, shape_of_candidates)


def round_weights(graph: onnx.ModelProto) -> None:
    """Stores the large matrices of a graph as int8, with a float32 scale for each word or column.

    The graph computes in float32: it begins by multiplying the integers by their scales.
    """
    kernels = {x for node in graph.graph.node if node.op_type == "MatMul" for x in node.input}
    constants, nodes = graph.graph.initializer, []
    for constant in [*constants]:
        name, matrix = constant.name, numpy_helper.to_array(constant)
        if matrix.ndim != 2 or matrix.nbytes < PAGE:
            continue
        scales = np.abs(matrix).max(axis=0 if name in kernels else 1, keepdims=True) / 127
        scales = np.where(scales > 0, scales, 1).astype("float32")
        parts = {"int8": np.rint(matrix / scales).astype("int8"), "scale": scales}
        constants.remove(constant)
        constants.extend(numpy_helper.from_array(x, f"{name}_{kind}") for kind, x in parts.items())
        nodes += [
            helper.make_node("Cast", [f"{name}_int8"], [f"{name}_float"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"{name}_float", f"{name}_scale"], [name]),
        ]
    nodes += graph.graph.node
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)


class _Graph:
    """Collects the nodes and constants of an ONNX graph."""

    def __init__(self, name: str, model: Transformer) -> None:
        self.name, self.model = name, model
        attention = model.decoder.layers[0].self_attention
        self.num_heads, self.d_k, self.d_v = attention.num_heads, attention.d_k, attention.d_v
        lists: list[list[Any]] = [[] for _ in range(4)]
        self.nodes, self.constants, self.inputs, self.outputs = lists
        self.names: dict[str, str] = {}  # maps names of values to their names as graph outputs

    def add(self, operator: str, *inputs: str | np.ndarray, **attributes: Any) -> str:
        """Adds a node and returns the name of its output. Arrays become constants of the graph."""
        return self.add_several(operator, 1, *inputs, **attributes)[0]

    def add_several(
        self, operator: str, count: int, *inputs: str | np.ndarray, **attributes: Any
    ) -> list[str]:
        """Adds a node with `count` outputs, and returns the names of the outputs (see `add`)."""
        names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        outputs = [f"{operator}_{len(self.nodes)}_{i}" for i in range(count)]
        self.nodes.append(helper.make_node(operator, names, outputs, **attributes))
        return outputs

    def constant(self, value: np.ndarray) -> str:
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

    def shapes(self, prefix: str, layer: int) -> list[tuple[str, tuple[str | int, ...]]]:
        """Returns names and shapes of keys and values: "past_", "" after the step, or "memory_"."""
        heads, d_k, d_v = self.num_heads, self.d_k, self.d_v
        beams = f"{prefix}beams", heads, f"{prefix}length"
        shapes: dict[str, tuple[str | int, ...]] = {"key": (*beams, d_k), "value": (*beams, d_v)}
        if prefix == "memory_":
            shapes = {"key": (heads, d_k, "source_length"), "value": (heads, "source_length", d_v)}
        return [(f"{prefix}{kind}_{layer + 1}", ("batch", *x)) for kind, x in shapes.items()]

    def embed(
        self, ids: str, embedding: keras.Layer, rows: Callable[[np.ndarray], str]
    ) -> tuple[str, Rotation]:
        """Returns embeddings plus positions, and the rotation. `rows` selects rows of a table."""
        model = self.model
        x = self.add("Gather", array(embedding.embeddings), ids)
        x = self.add("Mul", x, np.array(math.sqrt(model.d_model), "float32"))
        table = position_table(model)
        x = x if table is None else self.add("Add", x, rows(table))
        if not isinstance(model.positions, RotaryPositionalEncoding):
            return x, None
        angles = sinusoid_angles(model.max_length, self.d_k)
        cosines, sines = (np.repeat(array(f(angles)), 2, axis=-1) for f in (ops.cos, ops.sin))
        sines[:, 0::2] *= -1
        return x, (rows(cosines), rows(sines))

    def rotate(self, heads: str, rotation: Rotation) -> str:
        """Rotates each pair of features 2i and 2i + 1, or does nothing if `rotation` is None."""
        if rotation is None:
            return heads
        cosines, sines = rotation
        partners = self.add("Gather", heads, np.arange(self.d_k) ^ 1, axis=-1)
        return self.add("Add", self.add("Mul", heads, cosines), self.add("Mul", partners, sines))

    def project(self, x: str, attention: MultiHeadAttention) -> list[str]:
        """Returns queries, keys and values `(..., H * K)`, computed by one matrix product."""
        projections = [getattr(attention, f"{x}_projection") for x in ("query", "key", "value")]
        widths = np.array([projection.units for projection in projections])
        return self.add_several("Split", 3, self.linear(x, *projections), widths, axis=-1)

    def split_heads(self, x: str) -> str:
        """Reshapes `(B, T, H * K)` to `(B, H, T, K)`."""
        shape = np.array([0, 0, self.num_heads, -1])
        return self.add("Transpose", self.add("Reshape", x, shape), perm=(0, 2, 1, 3))

    def attend(
        self, queries: str, keys: str, values: str, attention: keras.Layer, mask: str | None = None
    ) -> str:
        """Returns multi-head attention. `keys` have the shape `(..., K, S)`.

        The decoder's self-attention has no mask, and a separate axis of hypotheses. So its heads
        `(B, N, H, 1, K)` are in the order of the result.
        """
        if attention.use_scale:
            scale = np.array(1.0 / math.sqrt(attention.d_k), "float32")
            queries = self.add("Mul", queries, scale)
        scores = self.add("MatMul", queries, keys)
        if mask is not None:
            scores = self.add("Where", mask, scores, np.array(MASKED_SCORE, "float32"))
        heads = self.add("MatMul", self.add("Softmax", scores, axis=-1), values)
        if mask is not None:
            heads = self.add("Transpose", heads, perm=(0, 2, 1, 3))
        joined = self.add("Reshape", heads, np.array([0, 0, attention.d_model]))
        return self.linear(joined, attention.output_projection)

    def feed_forward(self, x: str, layer: keras.Layer) -> str:
        entered = self.sublayer_input(x, layer.feed_forward_residual)
        inner = activated = self.linear(entered, layer.feed_forward.inner)
        for operator in ACTIVATIONS[layer.activation]:
            activated = self.add(operator, *([inner] if operator == "Mul" else []), activated)
        outer = self.linear(activated, layer.feed_forward.outer)
        return self.add_residual(x, outer, layer.feed_forward_residual)

    def sublayer_input(self, x: str, residual: keras.Layer) -> str:
        return self.norm(x, residual.norm) if residual.norm_first else x

    def add_residual(self, x: str, output: str, residual: keras.Layer) -> str:
        total = self.add("Add", x, output)
        return total if residual.norm_first else self.norm(total, residual.norm)

    def norm(self, x: str, layer: keras.Layer) -> str:
        if isinstance(layer, keras.layers.BatchNormalization):
            scale = array(layer.gamma) / np.sqrt(array(layer.moving_variance) + layer.epsilon)
            shift = array(layer.beta) - scale * array(layer.moving_mean)
            return self.add("Add", self.add("Mul", x, scale), shift)
        weights = array(layer.gamma), array(layer.beta)
        return self.add("LayerNormalization", x, *weights, epsilon=layer.epsilon)

    def linear(self, x: str, *layers: Any) -> str:
        """Applies linear layers by one matrix product, and returns the concatenated outputs."""
        kernel = np.concatenate([array(layer.kernel) for layer in layers], axis=-1)
        bias = np.concatenate([array(layer.bias) for layer in layers])
        return self.add("Add", self.add("MatMul", x, kernel), bias)
