"""Small models in the formats of other toolkits."""

from importlib.util import find_spec
from pathlib import Path

import keras

from keras_transformer import SearchOptions, Tokenizer, Transformer
from keras_transformer.export import export_hugging_face
from support.contract import randomize
from support.parallel_text import SENTENCES

V = 60
SIZES = {"num_layers": 1, "d_model": 12, "num_heads": 3, "d_ff": 24, "max_length": 64}


def ANY(*modules: str) -> bool:
    """Whether one of the modules is installed."""
    return any(map(find_spec, modules))


def hugging_face_folder(folder: Path, **arguments) -> Path:
    """A MarianMT model with random weights, its tokenizer and its model card."""
    keras.utils.set_random_seed(0)
    usual = {"use_logits_bias": True, "position_encoding": "sinusoidal_half_split"}
    model = Transformer(V, **{**SIZES, **usual, **arguments})
    randomize(model)
    options = SearchOptions(beam_size=4, length_penalty=1.0, length_penalty_form="power")
    tokenizer = Tokenizer.train(SENTENCES, V, joint="target_vocabulary_size" not in arguments)
    export_hugging_face(model, tokenizer, folder, options, ("en", "de"))
    (folder / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n")
    return folder
