"""A run's weights in the files of its peers. As a program: a worker that writes them.

The run needs a joint vocabulary. Each peer gets its own model with the weights of the run, so that
all translate alike.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _common
import numpy as np
from _decoding_engines import _fill, _fill_attention, _fill_layer

from keras_transformer.translation.open_run import open_model

FORBIDDEN = -1e4  # bias on the logits of padding and bos, see `export_ctranslate2`
MARIAN_ENCODER = "TransformerBatchEncoder->encoder"
MARIAN_DECODER = "TransformerBatchDecoder->decoder"


def save_ctranslate2(model: Any, tokenizer: Any, folder: Path) -> None:
    from keras_transformer.export import export_ctranslate2

    export_ctranslate2(model, tokenizer, folder)


def half_split(model: Any) -> Any:
    """The same function with the position encoding that Marian has.

    The features of interleaved sinusoids are sorted, even ones before odd ones, in all weights.
    """
    if model.position_encoding not in ("sinusoidal", "sinusoidal_half_split"):
        raise RuntimeError(
            f"Hugging Face's Marian has no position_encoding {model.position_encoding}"
        )
    if model.position_encoding == "sinusoidal_half_split":
        return model
    config = {**model.get_config(), "position_encoding": "sinusoidal_half_split"}
    order = np.argsort(np.arange(model.d_model) % 2, kind="stable")
    weights = []
    for variable, weight in zip(model.weights, model.get_weights(), strict=True):
        if re.search("embeddings|/output/|/outer/|gamma|beta", variable.path):
            weight = weight[..., order]
        elif variable.path.endswith("kernel"):
            weight = weight[order]
        weights.append(weight)
    result = type(model).from_config(config)
    result.set_weights(weights)
    return result


def save_hugging_face(model: Any, tokenizer: Any, folder: Path) -> None:
    """Marian's class, or for pre-norm Pegasus's, which is the same model with pre-norm."""
    import torch
    import transformers

    model = half_split(model)
    kind = "Pegasus" if model.norm_first else "Marian"
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=tokenizer.source_vocabulary_size,
        d_model=model.d_model,
        encoder_layers=model.encoder.num_layers,
        decoder_layers=model.decoder.num_layers,
        encoder_attention_heads=model.num_heads,
        decoder_attention_heads=model.num_heads,
        encoder_ffn_dim=model.d_ff,
        decoder_ffn_dim=model.d_ff,
        max_position_embeddings=model.max_length,
        activation_function=model.activation,
        scale_embedding=True,
        pad_token_id=tokenizer.pad_id,
        bos_token_id=tokenizer.bos_id,
        eos_token_id=tokenizer.eos_id,
        decoder_start_token_id=tokenizer.bos_id,
        forced_eos_token_id=None,
    )
    name = {"Pegasus": "PegasusForConditionalGeneration", "Marian": "MarianMTModel"}[kind]
    peer = getattr(transformers, name)(config)
    peer.generation_config.max_length = model.max_length
    _fill(peer.model.shared, [model.target_embedding.embeddings])
    bias = torch.zeros_like(peer.final_logits_bias)
    bias[:, [tokenizer.pad_id, tokenizer.bos_id]] = FORBIDDEN
    peer.final_logits_bias.copy_(bias)
    for side, ours in ((peer.model.encoder, model.encoder), (peer.model.decoder, model.decoder)):
        for layer, our_layer in zip(side.layers, ours.layers, strict=True):
            _fill_layer(layer, our_layer)
            if hasattr(layer, "encoder_attn"):
                _fill_attention(layer.encoder_attn, our_layer.cross_attention)
                norm = our_layer.cross_attention_residual.norm
                _fill(layer.encoder_attn_layer_norm, norm.weights)
        if model.norm_first:
            _fill(side.layer_norm, ours.norm.weights)
    peer.save_pretrained(folder)
    (folder / "source.model").write_bytes(tokenizer.source_model)


def save_marian(model: Any, tokenizer: Any, folder: Path) -> None:
    """Marian's model, and SentencePiece's, which Marian takes as its vocabulary."""
    config = json.dumps(marian_config(model)).encode() + b"\0"
    weights = marian_weights(model, tokenizer)
    weights["special:model.yml"] = np.frombuffer(config, "int8")
    folder.mkdir(parents=True)
    np.savez(folder / "model.npz", **weights)
    (folder / "vocabulary.spm").write_bytes(tokenizer.source_model)


def marian_config(model: Any) -> dict[str, Any]:
    """What Marian's trainer would write about the model.

    Marian has two Transformers. The sinusoids of both have other frequencies than ours, but
    "transformer-new" can have tables of positions instead; version 1.12 of "transformer" cannot.
    """
    if model.activation != "relu":
        raise RuntimeError(f"only relu is exported to Marian. Received: {model.activation}")
    return {
        "type": "transformer-new",
        "dim-emb": model.d_model,
        "dim-vocabs": [model.vocabulary_size] * 2,
        "enc-depth": model.encoder.num_layers,
        "dec-depth": model.decoder.num_layers,
        "transformer-heads": model.num_heads,
        "transformer-dim-ffn": model.d_ff,
        "transformer-ffn-activation": "relu",
        "transformer-preprocess": "n" if model.norm_first else "",
        "transformer-postprocess": "da" if model.norm_first else "dan",
        "transformer-postprocess-top": "n" if model.norm_first else "",
        "transformer-train-position-embeddings": True,
        "max-length": model.max_length,
        "tied-embeddings-all": True,
    }


def marian_weights(model: Any, tokenizer: Any) -> dict[str, np.ndarray]:
    """The weights by Marian's names.

    Marian's decoder starts with zeros instead of bos, so bos is added to its first position. With
    tables of positions, Marian does not scale embeddings, so the scaled ones are stored. They are
    also the matrix of the logits, so the norm before it is divided by the scale.
    """
    from keras_transformer.exchange.exported_model import array, position_table
    from keras_transformer.models.base import in_float32

    model = in_float32(model)
    positions = position_table(model)
    if positions is None or getattr(model.positions, "concatenate", False):
        raise RuntimeError(f"Marian has no position_encoding {model.position_encoding}")
    scale = np.sqrt(np.float32(model.d_model))
    embeddings = scale * array(model.target_embedding.embeddings)
    bias = np.zeros((1, len(embeddings)), "float32")
    bias[:, [tokenizer.pad_id, tokenizer.bos_id]] = FORBIDDEN
    target_positions = positions.copy()
    target_positions[0] += embeddings[tokenizer.bos_id]
    weights = {
        "Wemb": embeddings,
        "decoder_ff_logit_out_b": bias,
        f"{MARIAN_ENCODER}->positionEmbedding->embeddings": positions,
        f"{MARIAN_DECODER}->positionEmbedding->embeddings": target_positions,
    }
    layers = list(_marian_layers(model))
    for prefix, layer in layers:
        divisor = scale if layer is layers[-1][1] else 1
        for name, weight in zip(("weight", "bias"), layer.weights, strict=True):
            weights[f"{prefix}->{name}"] = array(weight) / divisor
    return weights


def _marian_layers(model: Any) -> Iterator[tuple[str, Any]]:
    """Marian's names of our dense layers and norms; the last is the norm before the logits."""
    norm = "preprocessor->norm" if model.norm_first else "postprocessor->norm"
    for stack, name, kind, self_block in (
        (model.encoder, MARIAN_ENCODER, "EncoderLayer", "selfAttentionBlock"),
        (model.decoder, MARIAN_DECODER, "DecoderLayerWithCrossAttention", "autoRegressiveBlock"),
    ):
        for number, ours in enumerate(stack.layers):
            layer = f"{name}->layers->at({number})->as<marian::nn::Transformer{kind}>()"
            block = f"{layer}->{self_block}"
            yield from _marian_attention(f"{block}->selfAttention", ours.self_attention)
            yield f"{block}->{norm}", ours.self_attention_residual.norm
            if stack is model.decoder:
                block = f"{layer}->crossAttentionBlock"
                yield from _marian_attention(f"{block}->crossAttention", ours.cross_attention)
                yield f"{block}->{norm}", ours.cross_attention_residual.norm
            block = f"{layer}->filterBlock"
            inner = "layers->at(0)->as<marian::nn::LinearReluDropout>()"
            yield f"{block}->{inner}", ours.feed_forward.inner
            yield f"{block}->layers->at(1)->as<marian::nn::Linear>()", ours.feed_forward.outer
            yield f"{block}->{norm}", ours.feed_forward_residual.norm
        if model.norm_first:
            yield f"{name}->postprocessor->norm", stack.norm


def _marian_attention(name: str, attention: Any) -> Iterator[tuple[str, Any]]:
    yield f"{name}->qProj", attention.query_projection
    yield f"{name}->kProj", attention.key_projection
    yield f"{name}->vProj", attention.value_projection
    yield f"{name}->oProj", attention.output_projection


SAVE = {
    "ctranslate2": save_ctranslate2,
    "hugging_face": save_hugging_face,
    "marian": save_marian,
}


def _exporting(run: Path, folder: Path) -> dict[str, Callable[..., Any]]:
    from keras_transformer.runs.run import Run

    opened = Run.open(run)

    def text() -> str:
        """The source of the run's test set, downloaded if the recipe says so."""
        return str(opened.text.files("test")[0])

    def export(peers: list[str]) -> dict[str, str]:
        """Returns, for each peer without an export, why it has none."""
        tokenizer = opened.tokenizer()
        if not tokenizer.joint:
            raise RuntimeError(f"{run} has two vocabularies; the benchmark needs a joint one")
        model = open_model(opened)
        problems = {}
        for peer in peers:
            try:
                SAVE[peer](model, tokenizer, folder / peer)
            except (ImportError, RuntimeError, ValueError) as error:
                problems[peer] = f"{type(error).__name__}: {error}"
        return problems

    return {"text": text, "export": export}


def main() -> None:
    run, folder = map(Path, sys.argv[1:])
    _common.serve(lambda: _exporting(run, folder))


if __name__ == "__main__":
    main()
