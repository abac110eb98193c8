"""Exchanges the weights of BERT, GPT-2, Llama and Qwen 3 with KerasHub, if it is installed."""

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.errors import imported
from keras_transformer.models.language_model import LanguageModel
from keras_transformer.models.masked_language_model import BertEncoder

# Maps the arguments of this package's models to those of the backbones.
_COMMON_SIZES = {
    "vocabulary_size": "vocabulary_size",
    "num_layers": "num_layers",
    "d_model": "hidden_dim",
    "d_ff": "intermediate_dim",
    "dropout_rate": "dropout",
}
_SIZES = {**_COMMON_SIZES, "num_heads": "num_heads", "max_length": "max_sequence_length"}
_LLAMA_SIZES = {
    **_COMMON_SIZES,
    "num_heads": "num_query_heads",
    "num_kv_heads": "num_key_value_heads",
    "norm_epsilon": "layer_norm_epsilon",
    "max_wavelength": "rope_max_wavelength",
    "tie_word_embeddings": "tie_word_embeddings",
}
_QWEN3_SIZES = {**_LLAMA_SIZES, "d_k": "head_dim", "d_v": "head_dim"}
# Maps the layers of `EncoderLayer` and `DecoderLayer` to names in the paths of KerasHub's weights.
_SUBLAYERS = {
    "self_attention.query_projection": "query",
    "self_attention.key_projection": "key",
    "self_attention.value_projection": "value",
    "self_attention.output_projection": "attention_output",
    "self_attention_residual.norm": "self_attention_layer_norm",
    "feed_forward.inner": "feedforward_intermediate_dense",
    "feed_forward.outer": "feedforward_output_dense",
    "feed_forward_residual.norm": "feedforward_layer_norm",
}
_LLAMA_SUBLAYERS = {
    **_SUBLAYERS,
    "self_attention.query_norm": "query_dense_layernorm",
    "self_attention.key_norm": "key_dense_layernorm",
    "self_attention_residual.norm": "self_attention_layernorm",
    "feed_forward.inner": "feedforward_gate_dense",
    "feed_forward.gate": "feedforward_intermediate_dense",
    "feed_forward_residual.norm": "feedforward_layernorm",
}
# Arguments of this package's models that a backbone does not have, and their values there.
_BERT: dict[str, Any] = {"activation": "gelu_approximate", "norm_epsilon": 1e-12}
_DECODER: dict[str, Any] = {
    "norm_first": True,
    "qk_norm": False,
    **dict.fromkeys(
        ("attention_pattern", "attention_soft_cap", "logits_soft_cap", "decoder_layer")
    ),
}
_GPT2: dict[str, Any] = {
    **_DECODER,
    "position_encoding": "learned",
    "activation": "gelu_approximate",
    "norm_epsilon": 1e-5,
    "normalization": "layer",
    "use_bias": True,
    "tie_word_embeddings": True,
}
_LLAMA: dict[str, Any] = {
    **_DECODER,
    "position_encoding": "rotary",
    "activation": "swiglu",
    "normalization": "rms",
    "use_bias": False,
}
_QWEN3: dict[str, Any] = {**_LLAMA, "qk_norm": True}
# Arguments of the backbones that a `LanguageModel` does not have, and their values there.
_LLAMA_ROPE = {"rope_position_scaling_factor": 1.0, "rope_frequency_adjustment_factor": None}
_QWEN3_ROPE = {"rope_scaling_factor": 1.0}


class _Pair(NamedTuple):
    """Two weights of which `target` is `factor` times `value`, reshaped to `shape` and transposed.

    `axes` is its own inverse. The reshaping to the target's own shape comes last.
    """

    value: Any
    target: Any
    shape: tuple[int, ...] = (-1,)
    axes: tuple[int, ...] = (0,)
    factor: float = 1.0

    def reversed(self) -> "_Pair":
        shape = tuple(self.shape[axis] for axis in self.axes)
        return _Pair(self.target, self.value, shape, self.axes, 1 / self.factor)


_Pairs = list[_Pair]  # from a weight of the package to the same weight of KerasHub
_Values = Mapping[str, Any]


def bert_from_keras_hub(backbone: keras.Model | str) -> tuple[BertEncoder, keras.layers.Dense]:
    """Creates a `BertEncoder` and a pooler with the weights of a `keras_hub.models.BertBackbone`.

    `encoder(...)` equals the backbone's `sequence_output`, and `pooler(encoder(...)[:, 0])`, a
    dense layer with tanh, its `pooled_output`. The encoder computes the padding mask itself, from
    the id 0 of padding.

    Example:

    >>> encoder, pooler = bert_from_keras_hub("bert_tiny_en_uncased")  # downloads the weights
    >>> x = encoder({"token_ids": token_ids, "segment_ids": segment_ids})

    Args:
        backbone: The backbone, or the name of one of its presets.

    Raises:
        ValueError: If `backbone` is of another class, is quantized or has LoRA.
    """
    backbone = _opened(backbone, {}, "BertBackbone")
    encoder = BertEncoder(
        **_sizes_of(backbone, _SIZES), num_segments=backbone.num_segments, **_BERT
    )
    d_model, dtype = encoder.d_model, encoder.dtype_policy
    pooler = keras.layers.Dense(d_model, activation="tanh", dtype=dtype, name="pooler")
    pooler.build((None, d_model))
    pairs = _bert_pairs(encoder, backbone, pooler)
    _copy("backbone", backbone.weights, [pair.reversed() for pair in pairs])
    return encoder, pooler


def bert_to_keras_hub(
    encoder: BertEncoder, pooler: keras.layers.Dense | None = None
) -> keras.Model:
    """Creates a `keras_hub.models.BertBackbone` with the weights of a `BertEncoder`.

    The backbone's `padding_mask` must be `token_ids != encoder.pad_id`.

    Example:

    >>> backbone = bert_to_keras_hub(model.encoder)  # of a `MaskedLanguageModel`

    Args:
        encoder: The encoder. Without segments, the backbone has one, whose embedding is 0.
        pooler: A dense layer with tanh. Defaults to None, for random weights of the pooler.

    Raises:
        ValueError: If `encoder` or `pooler` differs from BERT's, is quantized, or has LoRA.
    """
    if pooler and not (pooler.built and pooler.activation is keras.activations.tanh):
        raise ValueError(f"`pooler` must be built, with activation tanh. Received: pooler={pooler}")
    others = {"num_segments": encoder.num_segments or 1}
    backbone = _new_backbone("BertBackbone", encoder, {}, _BERT, _SIZES, **others)
    weights = [*encoder.weights, *(pooler.weights if pooler else ())]
    _copy("encoder", weights, _bert_pairs(encoder, backbone, pooler))
    if not encoder.num_segments:
        segments = backbone.segment_embedding.embeddings
        segments.assign(ops.zeros(segments.shape))
    return backbone


def gpt2_from_keras_hub(backbone: keras.Model | str) -> LanguageModel:
    """Creates a `LanguageModel` with the weights of a `keras_hub.models.GPT2Backbone`.

    The model's `states` equal the backbone's output at all tokens that are not padding. The model
    has `pad_id=-1`, because every token of GPT-2's vocabulary occurs in texts. The argument and the
    errors are as for `bert_from_keras_hub`.

    Example:

    >>> model = gpt2_from_keras_hub("gpt2_base_en")  # downloads the weights
    >>> logits = model(token_ids)
    """
    backbone = _opened(backbone, {}, "GPT2Backbone")
    return _model(backbone, _SIZES, **_GPT2)


def gpt2_to_keras_hub(model: LanguageModel) -> keras.Model:
    """Creates a `keras_hub.models.GPT2Backbone` with the weights of a `LanguageModel`.

    Example:

    >>> backbone = gpt2_to_keras_hub(model)
    >>> states = backbone({"token_ids": token_ids, "padding_mask": np.ones_like(token_ids)})

    Args:
        model: A model with one dropout rate, and with GPT-2's activation, norms and positions,
            which are the defaults.

    Raises:
        ValueError: If `model` differs from GPT-2, is quantized, or has LoRA.
    """
    return _decoder("GPT2Backbone", model, _GPT2, _SIZES)


def llama_from_keras_hub(backbone: keras.Model | str, max_length: int = 1024) -> LanguageModel:
    """Creates a `LanguageModel` with the weights of a `LlamaBackbone` or a `Llama3Backbone`.

    `states` and `pad_id` are as for `gpt2_from_keras_hub`. At all tokens that are not padding, the
    logits equal those of `LlamaCausalLM`.

    Example:

    >>> model = llama_from_keras_hub("llama3_8b_en")  # downloads the weights
    >>> result = search(model, token_ids, max_length=20, options=SearchOptions(beam_size=1))

    Args:
        backbone: As for `bert_from_keras_hub`. It must not change the frequencies of rotary
            positions, as Llama 3.1 does (`rope_frequency_adjustment_factor`).
        max_length: See `LanguageModel`.
    """
    backbone = _opened(backbone, _LLAMA_ROPE, "LlamaBackbone", "Llama3Backbone")
    return _model(backbone, _LLAMA_SIZES, **_LLAMA, max_length=max_length)


def llama_to_keras_hub(model: LanguageModel) -> keras.Model:
    """Creates a `keras_hub.models.Llama3Backbone` with the weights of a `LanguageModel`.

    The errors are as for `gpt2_to_keras_hub`.

    Example:

    >>> causal_lm = keras_hub.models.Llama3CausalLM(llama_to_keras_hub(model), preprocessor=None)

    Args:
        model: A model with one dropout rate, rotary positions, `activation="swiglu"`,
            `normalization="rms"`, `use_bias=False`, and heads of `d_model // num_heads` features.
    """
    return _decoder("Llama3Backbone", model, _LLAMA, _LLAMA_SIZES)


def qwen3_from_keras_hub(backbone: keras.Model | str, max_length: int = 1024) -> LanguageModel:
    """Creates a `LanguageModel` with the weights of a `keras_hub.models.Qwen3Backbone`.

    The arguments and the outputs are as for `llama_from_keras_hub`; positions must not be scaled. A
    `sliding_window_size` w becomes `attention_pattern="local"` with `attention_window=w - 1`.
    KerasHub 0.32 applies the window on TensorFlow only.

    Example:

    >>> model = qwen3_from_keras_hub("qwen3_0.6b_en")  # downloads the weights
    """
    backbone = _opened(backbone, _QWEN3_ROPE, "Qwen3Backbone")
    options = {**_QWEN3, "max_length": max_length}
    if window := backbone.sliding_window_size:
        options |= {"attention_pattern": "local", "attention_window": window - 1}
    return _model(backbone, _QWEN3_SIZES, **options)


def qwen3_to_keras_hub(model: LanguageModel) -> keras.Model:
    """Creates a `keras_hub.models.Qwen3Backbone` with the weights of a `LanguageModel`.

    The errors are as for `gpt2_to_keras_hub`.

    Example:

    >>> causal_lm = keras_hub.models.Qwen3CausalLM(qwen3_to_keras_hub(model), preprocessor=None)

    Args:
        model: A model as for `llama_to_keras_hub`, but with `qk_norm=True` and heads of any width.
            All layers may have local attention.
    """
    if model.attention_pattern != "local":
        return _decoder("Qwen3Backbone", model, _QWEN3, _QWEN3_SIZES, sliding_window_size=None)
    local, window = {**_QWEN3, "attention_pattern": "local"}, model.attention_window + 1
    return _decoder("Qwen3Backbone", model, local, _QWEN3_SIZES, sliding_window_size=window)


def _model(backbone: Any, names: Mapping[str, str], **options: Any) -> LanguageModel:
    model = LanguageModel(**_sizes_of(backbone, names), **options, pad_id=-1)
    pairs = _decoder_pairs(model, backbone)
    _copy("backbone", backbone.weights, [pair.reversed() for pair in pairs])
    return model


def _decoder(name: str, model: LanguageModel, fixed: _Values, names: _Values, **others: Any) -> Any:
    attention = model.decoder.layers[0].self_attention
    heads = {name: getattr(attention, name) for name in ("num_kv_heads", "d_k", "d_v")}
    usual = {"num_kv_heads": model.num_heads, "d_k": model.d_model // model.num_heads}
    needed = {"d_v": attention.d_k} | {x: usual[x] for x in usual if x not in names}
    backbone = _new_backbone(name, model, heads, {**fixed, **needed}, names, **others)
    _copy("model", model.weights, _decoder_pairs(model, backbone))
    return backbone


def _bert_pairs(encoder: BertEncoder, backbone: Any, pooler: keras.Layer | None) -> _Pairs:
    others = {"embeddings_layer_norm": encoder.embedding_norm, "pooled_dense": pooler}
    others["segment_embedding"] = encoder.segment_embedding
    return _model_pairs(encoder, encoder.encoder.layers, backbone, others)


def _decoder_pairs(model: LanguageModel, backbone: Any) -> _Pairs:
    """Pairs all weights of a decoder.

    KerasHub rotates features i and i + K / 2 together, and this package 2i and 2i + 1.
    """
    layers, norm = model.decoder.layers, model.decoder.norm
    if model.position_encoding != "rotary":
        return _model_pairs(model, layers, backbone, {"layer_norm": norm})
    attention, norms = layers[0].self_attention, ("query_dense_layernorm", "key_dense_layernorm")
    rotated: dict[str, Any] = {"shape": (-1, attention.d_k // 2, 2), "axes": (0, 2, 1)}
    kernels = dict(rotated)
    if model.qk_norm:
        # KerasHub's norms of queries and keys have an epsilon of their own. That of c x is the same
        # as that of x with epsilon / c².
        path = "_self_attention_layer._query_dense_layer_norm.epsilon"
        epsilon = attrgetter(path)(backbone.transformer_layers[0])
        kernels["factor"] = (epsilon / attention.query_norm.epsilon) ** 0.5
    layouts = {**dict.fromkeys(("query", "key"), kernels), **dict.fromkeys(norms, rotated)}
    others = {"sequence_output_layernorm": norm}
    pairs = _model_pairs(model, layers, backbone, others, _LLAMA_SUBLAYERS, layouts)
    if not model.tie_word_embeddings:
        matrix = model.embedding.output_embeddings
        target = backbone.token_embedding.reverse_embeddings
        pairs.append(_Pair(matrix, target, tuple(matrix.shape), (1, 0)))
    return pairs


def _backbone_class(name: str) -> Any:
    return getattr(imported("keras_hub.models", "tensorflow", f"a {name} needs"), name)


def _opened(backbone: keras.Model | str, needed: _Values, *class_names: str) -> Any:
    """Returns `backbone`, or the backbone of the preset with this name, if it has `needed`."""
    classes = [_backbone_class(name) for name in class_names]
    if isinstance(backbone, str):
        backbone = classes[0].from_preset(backbone)
    if type(backbone) not in classes:
        raise ValueError(
            f"`backbone` must be a `keras_hub.models.{' or '.join(class_names)}` or the name of a "
            f"preset. Received: backbone={backbone}"
        )
    _check_same("LanguageModel", "backbone", vars(backbone), needed)
    return backbone


def _sizes_of(backbone: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Returns the arguments of this package's model that `names` maps to those of `backbone`."""
    sizes = {own: getattr(backbone, other) for own, other in names.items()}
    return {**sizes, "attention_dropout_rate": backbone.dropout, "dtype": backbone.dtype_policy}


def _check_same(class_name: str, kind: str, values: _Values, needed: _Values) -> None:
    received = {name: values[name] for name in needed if values[name] != needed[name]}
    if received:
        expected = {name: needed[name] for name in received}
        raise ValueError(
            f"A `{class_name}` needs a {kind} with {expected}. Received: a {kind} with {received}"
        )


def _new_backbone(
    class_name: str, model: Any, heads: _Values, fixed: _Values, names: _Values, **others: Any
) -> Any:
    """Creates a backbone. `heads` has sizes that the arguments of `model` leave to its layers."""
    values = {**vars(model), **heads}
    needed = {**fixed, "attention_dropout_rate": model.dropout_rate}
    _check_same(class_name, "model", values, needed)
    sizes = {other: values[own] for own, other in names.items()}
    return _backbone_class(class_name)(**sizes, dtype=model.dtype_policy, **others)


def _model_pairs(
    model: keras.Model,
    layers: Iterable[keras.Layer],
    backbone: Any,
    others: _Values,
    sublayers: Mapping[str, str] = _SUBLAYERS,
    layouts: Mapping[str, _Values] = {},
) -> _Pairs:
    """Pairs all weights. `others` are layers of the model, or None, by their names in KerasHub.

    `layouts` are arguments of `_Pair` by the names in `sublayers`.
    """
    pairs = []
    both = {"position_embedding": model.positions, "token_embedding": model.embedding}
    for name, layer in {**both, **others}.items():
        pairs += _layer_pairs(layer, name, backbone)
    for own, other in zip(layers, backbone.transformer_layers, strict=True):
        for path, name in sublayers.items():
            pairs += _layer_pairs(attrgetter(path)(own), name, other, **layouts.get(name, {}))
    return pairs


def _layer_pairs(own: keras.Layer | None, name: str, parent: keras.Layer, **layout: Any) -> _Pairs:
    """Pairs the weights of a layer, if there is one, with those of `name` in one of KerasHub."""
    named = {"/".join(weight.path.split("/")[-2:]): weight for weight in parent.weights}
    weights = own.weights if own else ()
    keys = [(x, f"{name}/{x.name.removeprefix('position_')}") for x in weights]
    return [_Pair(weight, named[key], **layout) for weight, key in keys if key in named]


def _copy(name: str, weights: Iterable[keras.Variable], pairs: _Pairs) -> None:
    """Assigns the value of each pair to its target.

    Raises `ValueError` if one of the `weights` would be lost, such as a weight of LoRA.
    """
    known = {id(pair.value) for pair in pairs}
    if lost := [weight.path for weight in weights if id(weight) not in known]:
        raise ValueError(
            f"`{name}` must have only the weights of the published model, without quantization and "
            f"LoRA. Received: {name} with the weights {lost}"
        )
    for pair in pairs:
        value = ops.transpose(ops.reshape(pair.value, pair.shape), pair.axes)
        pair.target.assign(ops.reshape(value * pair.factor, pair.target.shape))
