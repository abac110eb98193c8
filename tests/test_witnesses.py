"""Two witnesses of the whole model, `reference` and PyTorch's own Transformer, and proof that both
can fail."""

import numpy as np
import pytest
import torch
from keras import ops
from support import reference
from support.contract import to_numpy, weights_of
from support.small_models import inputs_of, new_model, small_model

from keras_transformer.layers import SinusoidalPositionalEncoding, TokenEmbedding
from keras_transformer.layers.attention import multi_head_attention as multi_head_attention_module
from keras_transformer.layers.positions.positional_encoding import sinusoid_angles
from keras_transformer.models import Transformer

# --- PyTorch's Transformer with our weights --------------------------------------------------


def torch_logits(model: Transformer, inputs: dict) -> np.ndarray:
    """What `torch.nn.Transformer` makes of the weights of `model`.

    Embeddings, positions and the output projection are not part of it and come from `reference`.
    """
    weights = weights_of(model)
    joint = model.target_vocabulary_size is None
    source_embedding = weights["embedding" if joint else "source_embedding"]
    target_embedding = weights["embedding" if joint else "target_embedding"]

    def embed(embedding, ids):
        x = reference.token_embedding(embedding, ids)
        x = reference.encode_positions(None, x, model.position_encoding)
        return torch.from_numpy(x)

    padding = torch.from_numpy(~reference.padding_mask(inputs["source_ids"], model.pad_id))
    future = torch.from_numpy(~reference.causal_mask(inputs["target_ids"].shape[1]))
    with torch.no_grad():
        x = torch_transformer(model, weights)(
            src=embed(source_embedding, inputs["source_ids"]),
            tgt=embed(target_embedding, inputs["target_ids"]),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_mask=future,
        )
    return reference.output_projection(target_embedding, x.numpy())


def torch_transformer(model: Transformer, weights: dict) -> torch.nn.Transformer:
    transformer = torch.nn.Transformer(
        d_model=model.d_model,
        nhead=model.num_heads,
        num_encoder_layers=model.num_layers,
        num_decoder_layers=model.num_layers,
        dim_feedforward=model.d_ff,
        dropout=0.0,
        activation=model.activation,
        layer_norm_eps=reference.LAYER_NORM_EPSILON,
        batch_first=True,
        norm_first=model.norm_first,
        dtype=torch.float64,
        device="cpu",
    ).eval()
    for name, stack in (("encoder", transformer.encoder), ("decoder", transformer.decoder)):
        for i, layer in enumerate(stack.layers, start=1):
            layer.load_state_dict(state_of(weights[f"{name}_layer_{i}"]))
        if model.norm_first:
            stack.norm.load_state_dict(tensors(norm("", weights[f"{name}_norm"])))
        else:
            stack.norm = None  # the paper has no norm after its last layer
    return transformer


def state_of(weights: dict) -> dict[str, torch.Tensor]:
    """All weights of a layer by PyTorch's names."""
    attentions = {"self_attention": "self_attn", "cross_attention": "multihead_attn"}
    state = dense("linear1.", weights["feed_forward"]["inner"])
    state |= dense("linear2.", weights["feed_forward"]["outer"])
    for name in attentions.keys() & weights.keys():
        inputs = [weights[name][f"{x}_projection"] for x in ("query", "key", "value")]
        joined = {key: np.concatenate([x[key] for x in inputs], axis=-1) for key in inputs[0]}
        state |= dense(f"{attentions[name]}.in_proj_", joined)
        state |= dense(f"{attentions[name]}.out_proj.", weights[name]["output_projection"])
    residuals = [f"{name}_residual" for name in (*attentions, "feed_forward")]
    for number, name in enumerate((x for x in residuals if x in weights), start=1):
        state |= norm(f"norm{number}.", weights[name]["norm"])
    return tensors(state)


def dense(prefix: str, weights: dict) -> dict[str, np.ndarray]:
    return {f"{prefix}weight": weights["kernel"].T, f"{prefix}bias": weights["bias"]}


def norm(prefix: str, weights: dict) -> dict[str, np.ndarray]:
    return {f"{prefix}weight": weights["gamma"], f"{prefix}bias": weights["beta"]}


def tensors(state: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in state.items()}


def reference_logits(model: Transformer, inputs: dict) -> np.ndarray:
    return reference.transformer(weights_of(model), model.get_config(), **inputs)


WITNESSES = {"reference": reference_logits, "torch": torch_logits}

# --- Defects that were found in published Transformers ---------------------------------------


def without_scaling(self, inputs, reverse=False):
    if reverse:
        return ops.matmul(inputs, ops.transpose(self.embeddings))
    return ops.take(self.embeddings, inputs, axis=0)


def with_sine_and_cosine_swapped(self, embeddings, offset=0):
    angles = sinusoid_angles(ops.shape(embeddings)[1], embeddings.shape[-1], offset)
    table = ops.stack([ops.cos(angles), ops.sin(angles)], axis=-1)
    return embeddings + ops.reshape(table, (-1, embeddings.shape[-1]))


def showing_one_token_of_the_future(length, key_length):
    positions = ops.arange(length)
    return (positions[None, :] <= positions[:, None] + 1)[None]


def hiding_the_token_itself(length, key_length):
    positions = ops.arange(length)
    return (positions[None, :] < positions[:, None])[None]


DEFECTS = {
    "missing sqrt(d_model)": (TokenEmbedding, "call", without_scaling),
    "swapped sine and cosine": (
        SinusoidalPositionalEncoding,
        "call",
        with_sine_and_cosine_swapped,
    ),
    "mask off by one, open": (
        multi_head_attention_module,
        "causal_mask",
        showing_one_token_of_the_future,
    ),
    "mask off by one, closed": (
        multi_head_attention_module,
        "causal_mask",
        hiding_the_token_itself,
    ),
}


@pytest.mark.parametrize(
    "variant",
    ["sinusoidal", "sinusoidal_half_split", "pre_norm", "gelu", "separate_vocabularies"]
    + ["all_of_opennmt"],
)
def test_torch_agrees(variant):
    model = small_model(variant)
    inputs = inputs_of(model)
    expected = torch_logits(model, inputs)
    np.testing.assert_allclose(to_numpy(model(inputs)), expected, atol=1e-5)


@pytest.mark.parametrize("witness", WITNESSES)
@pytest.mark.parametrize("defect", DEFECTS)
def test_witness_sees_the_defect(witness, defect, monkeypatch):
    monkeypatch.setattr(*DEFECTS[defect])
    model = new_model(num_layers=1)
    inputs = inputs_of(model)
    expected = WITNESSES[witness](model, inputs)
    assert np.abs(to_numpy(model(inputs)) - expected).max() > 0.01
