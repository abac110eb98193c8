"""Exchanges the weights of BERT's encoder and of GPT-2 with KerasHub, if it is installed."""

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

import keras
from keras import ops

from keras_transformer.models.language_model import LanguageModel
from keras_transformer.models.masked_language_model import BertEncoder

# Maps the arguments of this package's models to those of the backbones.
_SIZES = {
    "vocabulary_size": "vocabulary_size",
    "num_layers": "num_layers",
    "d_model": "hidden_dim",
    "num_heads": "num_heads",
    "d_ff": "intermediate_dim",
    "dropout_rate": "dropout",
    "max_length": "max_sequence_length",
}
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
# Arguments of this package's models that a backbone does not have, and their values there.
_BERT: dict[str, Any] = {"activation": "gelu_approximate", "norm_epsilon": 1e-12}
_GPT2: dict[str, Any] = {
    "position_encoding": "learned",
    "activation": "gelu_approximate",
    "norm_first": True,
    "norm_epsilon": 1e-5,
    "attention_pattern": None,
    "normalization": "layer",
    "use_bias": True,
    "tie_word_embeddings": True,
    **dict.fromkeys(("num_kv_heads", "attention_soft_cap", "logits_soft_cap", "d_k", "d_v")),
    **{"qk_norm": False, "decoder_layer": None},
}

Pairs = list[tuple[Any, Any]]  # a weight of the package, and the same weight of KerasHub


def bert_from_keras_hub(backbone: keras.Model | str) -> tuple[BertEncoder, keras.layers.Dense]:
    """Creates a `BertEncoder` and a pooler with the weights of a `keras_hub.models.BertBackbone`.

    `encoder(...)` equals the backbone's `sequence_output`, and `pooler(encoder(...)[:, 0])`, a
    dense layer with tanh, its `pooled_output`. The encoder computes the padding mask itself, from
    the id 0 of padding.

    Example:

    >>> encoder, pooler = bert_from_keras_hub("bert_tiny_en_uncased")  # downloads the weights
    >>> x = encoder({"token_ids": token_ids, "segment_ids": segment_ids})

    Args:
        backbone: A `BertBackbone`, or the name of one of its presets.

    Raises:
        ValueError: If `backbone` is not a `BertBackbone`, is quantized or has LoRA.
    """
    backbone = _opened(backbone, "BertBackbone")
    encoder = BertEncoder(**_sizes_of(backbone), num_segments=backbone.num_segments, **_BERT)
    d_model, dtype = encoder.d_model, encoder.dtype_policy
    pooler = keras.layers.Dense(d_model, activation="tanh", dtype=dtype, name="pooler")
    pooler.build((None, d_model))
    pairs = _bert_pairs(encoder, backbone, pooler)
    _copy("backbone", backbone.weights, [(other, own) for own, other in pairs])
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
    backbone = _new_backbone("BertBackbone", encoder, _BERT, num_segments=encoder.num_segments or 1)
    weights = [*encoder.weights, *(pooler.weights if pooler else ())]
    _copy("encoder", weights, _bert_pairs(encoder, backbone, pooler))
    if not encoder.num_segments:
        segments = backbone.segment_embedding.embeddings
        segments.assign(ops.zeros(segments.shape))
    return backbone


def gpt2_from_keras_hub(backbone: keras.Model | str) -> LanguageModel:
    """Creates a `LanguageModel` with the weights of a `keras_hub.models.GPT2Backbone`.

    The model's `states` equal the backbone's output at all tokens that are not padding. The model
    has `pad_id=-1`, because every token of GPT-2's vocabulary occurs in texts.

    Example:

    >>> model = gpt2_from_keras_hub("gpt2_base_en")  # downloads the weights
    >>> logits = model(token_ids)

    Args:
        backbone: A `GPT2Backbone`, or the name of one of its presets.

    Raises:
        ValueError: If `backbone` is not a `GPT2Backbone`, is quantized or has LoRA.
    """
    backbone = _opened(backbone, "GPT2Backbone")
    model = LanguageModel(**_sizes_of(backbone), pad_id=-1, **_GPT2)
    pairs = _gpt2_pairs(model, backbone)
    _copy("backbone", backbone.weights, [(other, own) for own, other in pairs])
    return model


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
    backbone = _new_backbone("GPT2Backbone", model, _GPT2)
    _copy("model", model.weights, _gpt2_pairs(model, backbone))
    return backbone


def _backbone_class(name: str) -> Any:
    try:
        import keras_hub
    except ImportError as error:
        raise ImportError(
            "KerasHub is needed: pip install 'keras3-transformer[tensorflow]'"
        ) from error
    return getattr(keras_hub.models, name)


def _opened(backbone: keras.Model | str, class_name: str) -> Any:
    """Returns `backbone`, or the backbone of the preset with this name."""
    backbone_class = _backbone_class(class_name)
    if isinstance(backbone, str):
        backbone = backbone_class.from_preset(backbone)
    if type(backbone) is not backbone_class:
        raise ValueError(
            f"`backbone` must be a `keras_hub.models.{class_name}` or the name of a preset. "
            f"Received: backbone={backbone}"
        )
    return backbone


def _sizes_of(backbone: Any) -> dict[str, Any]:
    sizes = {own: getattr(backbone, other) for own, other in _SIZES.items()}
    return {**sizes, "attention_dropout_rate": backbone.dropout, "dtype": backbone.dtype_policy}


def _new_backbone(class_name: str, model: keras.Model, fixed: dict[str, Any], **others: int) -> Any:
    needed = {**fixed, "attention_dropout_rate": model.dropout_rate}
    received = {name: getattr(model, name) for name in needed}
    if received != needed:
        raise ValueError(
            f"A `{class_name}` needs a model with {needed}. Received: a model with {received}"
        )
    sizes = {other: getattr(model, own) for own, other in _SIZES.items()}
    return _backbone_class(class_name)(**sizes, dtype=model.dtype_policy, **others)


def _bert_pairs(encoder: BertEncoder, backbone: Any, pooler: keras.Layer | None) -> Pairs:
    others = {"embeddings_layer_norm": encoder.embedding_norm, "pooled_dense": pooler}
    others["segment_embedding"] = encoder.segment_embedding
    return _pairs(encoder, encoder.encoder.layers, backbone, others)


def _gpt2_pairs(model: LanguageModel, backbone: Any) -> Pairs:
    return _pairs(model, model.decoder.layers, backbone, {"layer_norm": model.decoder.norm})


def _pairs(
    model: keras.Model, layers: Iterable[keras.Layer], backbone: Any, others: Mapping[str, Any]
) -> Pairs:
    """Pairs all weights. `others` are layers of the model, or None, by their names in KerasHub."""
    positions = backbone.position_embedding.position_embeddings
    pairs = [(model.positions.position_embeddings, positions)]
    for name, layer in {"token_embedding": model.embedding, **others}.items():
        pairs += _layer_pairs(layer, name, backbone)
    for own, other in zip(layers, backbone.transformer_layers, strict=True):
        for path, name in _SUBLAYERS.items():
            pairs += _layer_pairs(attrgetter(path)(own), name, other)
    return pairs


def _layer_pairs(own: keras.Layer | None, name: str, parent: keras.Layer) -> Pairs:
    """Pairs the weights of a layer, if there is one, with those of `name` in one of KerasHub."""
    named = {"/".join(weight.path.split("/")[-2:]): weight for weight in parent.weights}
    keys = [(weight, f"{name}/{weight.name}") for weight in (own.weights if own else ())]
    return [(weight, named[key]) for weight, key in keys if key in named]


def _copy(name: str, weights: Iterable[keras.Variable], pairs: Pairs) -> None:
    """Assigns the first weight of each pair to the second, which may have another shape.

    Raises `ValueError` if one of the `weights` would be lost, such as a weight of LoRA.
    """
    known = {id(value) for value, _ in pairs}
    if lost := [weight.path for weight in weights if id(weight) not in known]:
        raise ValueError(
            f"`{name}` must have only the weights of the published model, without quantization and "
            f"LoRA. Received: {name} with the weights {lost}"
        )
    for value, target in pairs:
        target.assign(ops.reshape(value, target.shape))
