"""A run's weights in the files of its peers. As a program: a worker that writes them.

The run needs a joint vocabulary. Each peer gets its own model with the weights of the run, so that
all translate alike.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _common
import numpy as np
from _decoding_engines import _fill, _fill_attention, _fill_layer

FORBIDDEN = -1e4  # bias on the logits of padding and bos, see `export_ctranslate2`


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


SAVE = {
    "ctranslate2": save_ctranslate2,
    "hugging_face": save_hugging_face,
}


def _exporting(run: Path, folder: Path) -> dict[str, Callable[..., Any]]:
    from keras_transformer.runs.run import Run

    opened = Run.open(run)

    def text() -> str:
        """The source of the run's test set, downloaded if the recipe says so."""
        return str(opened.text.files("test")[0])

    def export(peers: list[str]) -> None:
        tokenizer = opened.tokenizer()
        if not tokenizer.joint:
            raise RuntimeError(f"{run} has two vocabularies; the benchmark needs a joint one")
        model = opened.model()
        for peer in peers:
            SAVE[peer](model, tokenizer, folder / peer)

    return {"text": text, "export": export}


def main() -> None:
    run, folder = map(Path, sys.argv[1:])
    _common.serve(lambda: _exporting(run, folder))


if __name__ == "__main__":
    main()
