"""Exchanges BERT's encoder with KerasHub."""

from operator import attrgetter
from typing import Any

import keras
from keras import ops

from keras_transformer.exchange.exchange import (
    DENSE,
    NORM,
    assign,
    check_weights,
    checked_backbone,
    import_keras_hub,
    sizes_for_backbone,
    sizes_of_backbone,
    weight_pairs,
)
from keras_transformer.models.masked_language_model import BertEncoder

# Maps the layers of `EncoderLayer` to those of `keras_hub.layers.TransformerEncoder`.
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
# Arguments of `BertEncoder` that a `BertBackbone` does not have, and their values there.
_FIXED: dict[str, Any] = {"activation": "gelu_approximate", "norm_epsilon": 1e-12}


def bert_from_keras_hub(backbone: Any) -> tuple[BertEncoder, keras.layers.Dense]:
    """Creates a `BertEncoder` and a pooler with the weights of a `keras_hub.models.BertBackbone`.

    `encoder(...)` equals the backbone's `sequence_output`, and `pooler(encoder(...)[:, 0])` its
    `pooled_output`. The encoder computes the padding mask itself, from the id 0 of padding.

    Example:

    ```python
    encoder, pooler = bert_from_keras_hub("bert_tiny_en_uncased")  # downloads the weights
    x = encoder({"token_ids": token_ids, "segment_ids": segment_ids})
    ```

    Args:
        backbone: A `BertBackbone`, or the name of one of its presets.

    Returns:
        A tuple of the encoder and the pooler. The pooler is a dense layer with tanh.

    Raises:
        ImportError: If KerasHub is not installed.
        ValueError: If `backbone` is not a `BertBackbone`, is quantized, has LoRA, or has several
            dtype policies.
    """
    backbone = checked_backbone(backbone, "BertBackbone")
    sizes = sizes_of_backbone(backbone)
    encoder = BertEncoder(**sizes, num_segments=backbone.num_segments, **_FIXED)
    pooler = keras.layers.Dense(
        encoder.d_model, activation="tanh", dtype=encoder.dtype_policy, name="pooler"
    )
    pooler.build((None, encoder.d_model))
    pairs = [*_pairs(encoder, backbone), *weight_pairs(pooler, backbone.pooled_dense, DENSE)]
    check_weights("backbone", backbone.weights, [other for _, other in pairs])
    for own, other in pairs:
        assign(own, other)
    return encoder, pooler


def bert_to_keras_hub(encoder: BertEncoder, pooler: keras.layers.Dense | None = None) -> Any:
    """Creates a `keras_hub.models.BertBackbone` with the weights of a `BertEncoder`.

    Example:

    ```python
    backbone = bert_to_keras_hub(model.encoder)  # of a `MaskedLanguageModel`
    ```

    Args:
        encoder: The encoder. If it has no segments, the backbone has one segment, whose embedding
            is 0.
        pooler: A dense layer with tanh. Defaults to None, which leaves the random initial weights
            of the backbone's pooler.

    Returns:
        The backbone. Its `padding_mask` must be `token_ids != encoder.pad_id`.

    Raises:
        ImportError: If KerasHub is not installed.
        ValueError: If `encoder` or `pooler` differs from BERT's, is quantized, or has LoRA.
    """
    _check_encoder(encoder, pooler)
    backbone = import_keras_hub().models.BertBackbone(
        **sizes_for_backbone(encoder), num_segments=encoder.num_segments or 1
    )
    pairs = _pairs(encoder, backbone)
    check_weights("encoder", encoder.weights, [own for own, _ in pairs])
    if pooler is not None:
        own = weight_pairs(pooler, backbone.pooled_dense, DENSE)
        check_weights("pooler", pooler.weights, [weight for weight, _ in own])
        pairs += own
    if not encoder.num_segments:
        segments = backbone.segment_embedding.embeddings
        segments.assign(ops.zeros(segments.shape))
    for own, other in pairs:
        assign(other, own)
    return backbone


def _pairs(encoder: BertEncoder, backbone: Any) -> list[tuple[Any, Any]]:
    """Returns pairs of an encoder's weight and the same weight of a backbone."""
    pairs = [
        (encoder.embedding.embeddings, backbone.token_embedding.embeddings),
        (encoder.positions.position_embeddings, backbone.position_embedding.position_embeddings),
        *weight_pairs(encoder.embedding_norm, backbone.embeddings_layer_norm, NORM),
    ]
    if encoder.segment_embedding is not None:
        pairs.append((encoder.segment_embedding.embeddings, backbone.segment_embedding.embeddings))
    for own, other in zip(encoder.encoder.layers, backbone.transformer_layers, strict=True):
        named = {"/".join(weight.path.split("/")[-2:]): weight for weight in other.weights}
        for path, name in _SUBLAYERS.items():
            for weight in NORM if name.endswith("norm") else DENSE:
                pairs.append((getattr(attrgetter(path)(own), weight), named[f"{name}/{weight}"]))
    return pairs


def _check_encoder(encoder: BertEncoder, pooler: keras.layers.Dense | None) -> None:
    fixed = {**_FIXED, "attention_dropout_rate": encoder.dropout_rate}
    others = {name: getattr(encoder, name) for name in fixed}
    if others != fixed:
        raise ValueError(
            f"A `BertBackbone` needs an `encoder` with {fixed}. Received: encoder with {others}"
        )
    if pooler is not None and (
        not pooler.built
        or not pooler.use_bias
        or pooler.activation is not keras.activations.tanh
        or pooler.kernel.shape != (encoder.d_model, encoder.d_model)
    ):
        raise ValueError(
            f"`pooler` must be a built `keras.layers.Dense({encoder.d_model}, activation='tanh')` "
            f"for inputs of the same width. Received: pooler={pooler}"
        )
