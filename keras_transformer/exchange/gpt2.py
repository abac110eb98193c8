"""Exchanges GPT-2 with KerasHub."""

from operator import attrgetter
from typing import Any

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
from keras_transformer.models.language_model import LanguageModel

# Maps the layers of `DecoderLayer` to those of `keras_hub.layers.TransformerDecoder`.
_SUBLAYERS = {
    "self_attention.query_projection": "_self_attention_layer.query_dense",
    "self_attention.key_projection": "_self_attention_layer.key_dense",
    "self_attention.value_projection": "_self_attention_layer.value_dense",
    "self_attention.output_projection": "_self_attention_layer.output_dense",
    "self_attention_residual.norm": "_self_attention_layer_norm",
    "feed_forward.inner": "_feedforward_intermediate_dense",
    "feed_forward.outer": "_feedforward_output_dense",
    "feed_forward_residual.norm": "_feedforward_layer_norm",
}
# Arguments of `LanguageModel` that a `GPT2Backbone` does not have, and their values there.
_FIXED: dict[str, Any] = {
    "position_encoding": "learned",
    "activation": "gelu_approximate",
    "norm_first": True,
    "norm_epsilon": 1e-5,
    "attention_pattern": None,
}


def gpt2_from_keras_hub(backbone: Any) -> LanguageModel:
    """Creates a `LanguageModel` with the weights of a `keras_hub.models.GPT2Backbone`.

    The model's `states` equal the backbone's output at all tokens that are not padding. The model
    has `pad_id=-1`, because every token of GPT-2's vocabulary occurs in texts.

    Example:

    ```python
    model = gpt2_from_keras_hub("gpt2_base_en")  # downloads the weights
    logits = model(token_ids)
    ```

    Args:
        backbone: A `GPT2Backbone`, or the name of one of its presets.

    Raises:
        ImportError: If KerasHub is not installed.
        ValueError: If `backbone` is not a `GPT2Backbone`, is quantized, has LoRA, or has several
            dtype policies.
    """
    backbone = checked_backbone(backbone, "GPT2Backbone")
    model = LanguageModel(**sizes_of_backbone(backbone), pad_id=-1, **_FIXED)
    pairs = _pairs(model, backbone)
    check_weights("backbone", backbone.weights, [other for _, other in pairs])
    for own, other in pairs:
        assign(own, other)
    return model


def gpt2_to_keras_hub(model: LanguageModel) -> Any:
    """Creates a `keras_hub.models.GPT2Backbone` with the weights of a `LanguageModel`.

    Example:

    ```python
    backbone = gpt2_to_keras_hub(model)
    states = backbone({"token_ids": token_ids, "padding_mask": np.ones_like(token_ids)})
    ```

    Args:
        model: A model with the activation, norms and learned positions of GPT-2, which are the
            defaults, and with one dropout rate.

    Raises:
        ImportError: If KerasHub is not installed.
        ValueError: If `model` differs from GPT-2, is quantized, or has LoRA.
    """
    fixed = {**_FIXED, "attention_dropout_rate": model.dropout_rate}
    others = {name: getattr(model, name) for name in fixed}
    if others != fixed:
        raise ValueError(
            f"A `GPT2Backbone` needs a `model` with {fixed}. Received: model with {others}"
        )
    backbone = import_keras_hub().models.GPT2Backbone(**sizes_for_backbone(model))
    pairs = _pairs(model, backbone)
    check_weights("model", model.weights, [own for own, _ in pairs])
    for own, other in pairs:
        assign(other, own)
    return backbone


def _pairs(model: LanguageModel, backbone: Any) -> list[tuple[Any, Any]]:
    """Returns pairs of a model's weight and the same weight of a backbone."""
    pairs = [
        (model.embedding.embeddings, backbone.token_embedding.embeddings),
        (model.positions.position_embeddings, backbone.position_embedding.position_embeddings),
        *weight_pairs(model.decoder.norm, backbone.layer_norm, NORM),
    ]
    for own, other in zip(model.decoder.layers, backbone.transformer_layers, strict=True):
        for path, name in _SUBLAYERS.items():
            weights = NORM if name.endswith("norm") else DENSE
            pairs += weight_pairs(attrgetter(path)(own), attrgetter(name)(other), weights)
    return pairs
