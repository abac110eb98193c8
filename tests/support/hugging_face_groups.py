"""Writes tests/fixtures/hugging_face_groups.json: group beam search of Hugging Face.

Later releases of transformers have no group beam search any more, so that tests read what this one
found, with the weights of `eager_to_end` in a `MarianMTModel`:

    pip install "transformers==4.46.3" torch
    KERAS_BACKEND=torch PYTHONPATH=.:tests:scripts/bench python -m support.hugging_face_groups
"""

import json
from pathlib import Path

import keras
import numpy as np

from keras_transformer import Transformer
from support.contract import randomize, to_numpy
from support.fake_models import BOS, EOS, PAD

FIXTURE = Path(__file__).parent.parent / "fixtures" / "hugging_face_groups.json"
V, D, H, F, LAYERS, LONGEST, BATCH = 40, 16, 4, 32, 2, 12, 16
SEARCHES = [
    {"beam_size": 4, "num_beam_groups": 2, "diversity_penalty": 0.5, "length_penalty": 0.0},
    {"beam_size": 6, "num_beam_groups": 3, "diversity_penalty": 1.0, "length_penalty": 1.0},
    {"beam_size": 4, "num_beam_groups": 4, "diversity_penalty": 0.7, "length_penalty": 0.5},
]


def sources():
    source_ids = np.random.default_rng(0).integers(4, V, (BATCH, 9)).astype("int32")
    source_ids[:, -1] = EOS
    return source_ids


def eager_to_end():
    """A model that ends some hypotheses early: its eos looks like the mean of its states."""
    model = Transformer(
        V,
        num_layers=LAYERS,
        d_model=D,
        num_heads=H,
        d_ff=F,
        position_encoding="sinusoidal_half_split",
        max_length=64,
    )
    randomize(model)
    generator = np.random.default_rng(7)
    inputs = {
        "source_ids": generator.integers(4, V, (64, 9)),
        "target_ids": generator.integers(4, V, (64, 6)),
    }
    mean = to_numpy(keras.Model(model.input, model.states)(inputs)).mean((0, 1))
    embeddings = to_numpy(model.target_embedding.embeddings).copy()
    embeddings[EOS] = 0.5 * mean / np.linalg.norm(mean)
    model.target_embedding.embeddings.assign(embeddings)
    return model


def main():
    import _decoding_engines as engines
    import torch
    from transformers import MarianConfig, MarianMTModel

    ours = eager_to_end()
    sizes = {
        f"{side}_{name}": size
        for side in ("encoder", "decoder")
        for name, size in (("layers", LAYERS), ("attention_heads", H), ("ffn_dim", F))
    }
    marian = MarianMTModel(
        MarianConfig(
            vocab_size=V,
            d_model=D,
            **sizes,
            max_position_embeddings=64,
            activation_function="relu",
            scale_embedding=True,
            share_encoder_decoder_embeddings=True,
            pad_token_id=PAD,
            eos_token_id=EOS,
            decoder_start_token_id=BOS,
            forced_eos_token_id=None,
        )
    ).eval()
    engines._fill(marian.model.shared, [ours.target_embedding.embeddings])
    for theirs, own in zip(marian.model.encoder.layers, ours.encoder.layers, strict=True):
        engines._fill_layer(theirs, own)
    for theirs, own in zip(marian.model.decoder.layers, ours.decoder.layers, strict=True):
        engines._fill_layer(theirs, own)
        engines._fill_attention(theirs.encoder_attn, own.cross_attention)
        engines._fill(theirs.encoder_attn_layer_norm, own.cross_attention_residual.norm.weights)
    for module in marian.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-6
    found = []
    for options in SEARCHES:
        beams = options["beam_size"]
        with torch.no_grad():
            result = marian.generate(
                input_ids=torch.from_numpy(sources()).long(),
                num_beams=beams,
                num_beam_groups=options["num_beam_groups"],
                diversity_penalty=options["diversity_penalty"],
                length_penalty=options["length_penalty"],
                num_return_sequences=beams,
                max_new_tokens=LONGEST,
                early_stopping=True,
                bad_words_ids=[[PAD], [BOS]],
                return_dict_in_generate=True,
                output_scores=True,
            )
        ids = result.sequences[:, 1:].numpy()
        ids = np.pad(ids, ((0, 0), (0, LONGEST - ids.shape[1]))).reshape(BATCH, beams, LONGEST)
        scores = result.sequences_scores.numpy().reshape(BATCH, beams)
        found.append({"ids": ids.tolist(), "scores": scores.round(5).tolist()})
    FIXTURE.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
