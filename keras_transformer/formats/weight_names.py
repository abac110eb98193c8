"""What the weights of a `Transformer` are called in the formats of other toolkits."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from keras_transformer.formats.exported_model import array
from keras_transformer.layers.saving import merged_weights
from keras_transformer.models.transformer import Transformer

# Stack, number of the layer, sublayer and weight in the path of a weight of `Transformer`, such as
# encoder_layer_1/self_attention/query/kernel. The norm after a stack has no number.
_IN_LAYER = re.compile(r"(encoder|decoder)_(?:layer_(\d+)/(.+)|(norm))/(\w+)")
# Names in a layer: here, in Hugging Face, in Marian, and in CTranslate2, some of whose layers have
# the weights of several, here with "#", one after another. "*" stands for the name of the weight.
_TABLE = """
self_attention/query           self_attn.q_proj         self_*q          self_attention/linear_0#q
self_attention/key             self_attn.k_proj         self_*k          self_attention/linear_0#k
self_attention/value           self_attn.v_proj         self_*v          self_attention/linear_0#v
self_attention/output          self_attn.out_proj       self_*o          self_attention/linear_1
self_attention/forget_gate     -                        rnn_*f           -
self_attention/candidate       -                        rnn_*            -
self_attention_residual/norm   self_attn_layer_norm     self_Wo_ln_*     self_attention/layer_norm
cross_attention/query          encoder_attn.q_proj      context_*q       attention/linear_0
cross_attention/key            encoder_attn.k_proj      context_*k       attention/linear_1#k
cross_attention/value          encoder_attn.v_proj      context_*v       attention/linear_1#v
cross_attention/output         encoder_attn.out_proj    context_*o       attention/linear_2
cross_attention_residual/norm  encoder_attn_layer_norm  context_Wo_ln_*  attention/layer_norm
feed_forward/inner             fc1                      ffn_*1           ffn/linear_0
feed_forward/outer             fc2                      ffn_*2           ffn/linear_1
feed_forward_residual/norm     final_layer_norm         ffn_ffn_ln_*     ffn/layer_norm
"""
_SUBLAYERS = {row[0]: row for row in map(str.split, _TABLE.strip().splitlines())}


@dataclass(frozen=True)
class Format:
    """A format's names of the weights of a `Transformer`.

    Attributes:
        column: Of the table of sublayers.
        layer: Name of a weight in a layer, with {stack}, {number} (of the layer, from 1 on) or
            {index} (from 0 on), {sublayer} and "*".
        norm: Name of the norm after a stack, with {stack} and "*".
        weights: What "*" is for kernel, bias, gamma and beta.
        matrices: Names of what is not in a layer: "source", "target", "output_embeddings", "bias"
            and "position_embeddings". Of several names, the first that a file has counts.
    """

    column: int
    layer: str
    norm: str
    weights: Mapping[str, str]
    matrices: Mapping[str, Sequence[str]]

    def name(self, path: str, matrices: Mapping[str, str]) -> str:
        """Returns the name of a weight, or "" for one outside layers that `matrices` lacks."""
        if match := _IN_LAYER.fullmatch(path):
            stack, number, sublayer, norm, weight = match.groups()
            place = {"number": number, "index": int(number or 0) - 1}
            place["sublayer"] = norm or _SUBLAYERS[sublayer][self.column]
            name = (self.norm if norm else self.layer).format(stack=stack, **place)
            return name.replace("*", self.weights[weight])
        layer, _, kind = path.partition("/")
        if kind == "embeddings":
            kind = "source" if layer == "source_embedding" else "target"
        return matrices.get(kind, "")


HUGGING_FACE = Format(
    column=1,
    layer="model.{stack}.layers.{index}.{sublayer}.*",
    norm="model.{stack}.layer_norm.*",
    weights={"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"},
    matrices={
        "source": ("model.shared.weight", "model.encoder.embed_tokens.weight"),
        "target": ("model.shared.weight", "model.decoder.embed_tokens.weight"),
        "output_embeddings": ("lm_head.weight",),
        "bias": ("final_logits_bias",),
        "position_embeddings": (
            "model.encoder.embed_positions.weight",
            "model.decoder.embed_positions.weight",
        ),
    },
)
MARIAN = Format(
    column=2,
    layer="{stack}_l{number}_{sublayer}",
    norm="{stack}_top_ln_*",
    weights={"kernel": "W", "bias": "b", "gamma": "scale", "beta": "bias"},
    matrices={
        "source": ("Wemb", "encoder_Wemb"),
        "target": ("Wemb", "decoder_Wemb"),
        "output_embeddings": ("decoder_ff_logit_out_Wt", "decoder_ff_logit_out_W"),
        "bias": ("decoder_ff_logit_out_b",),
    },
)
CTRANSLATE2 = Format(
    column=3,
    layer="{stack}/layer_{index}/{sublayer}/*",
    norm="{stack}/layer_norm/*",
    weights={"kernel": "weight", "bias": "bias", "gamma": "gamma", "beta": "beta"},
    matrices={
        "source": ("encoder/embeddings_0/weight", "encoder/embeddings/weight"),
        "target": ("decoder/embeddings/weight",),
        "output_embeddings": ("decoder/projection/weight",),
        "bias": ("decoder/projection/bias",),
        "position_embeddings": (
            "encoder/position_encodings/encodings",
            "decoder/position_encodings/encodings",
        ),
    },
)


def named_weights(
    model: Transformer, format: Format, matrices: Mapping[str, str]
) -> dict[str, np.ndarray]:
    """Returns the weights of a model, with kernels `(out, in)`, by the names of a format.

    `matrices` are the names of those outside layers; others are left out. Kernels include LoRA.
    """
    weights = merged_weights(model)
    named = [(format.name(path, matrices), path, weight) for path, weight in weights]
    return {
        name: array(weight).T if path.endswith("kernel") else array(weight)
        for name, path, weight in named
        if name
    }
