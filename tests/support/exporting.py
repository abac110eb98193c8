"""A small model with random weights, exported as a SavedModel."""

from pathlib import Path
from typing import NamedTuple

from keras_transformer import SearchOptions, Tokenizer, Transformer, save_run
from keras_transformer.formats import ExportOptions, export_run
from support.contract import randomize

WORDS = "a bad cab fed a deaf face add bead cafe dab each fad".split()
PAIRS = [(word, word[::-1].upper()) for word in WORDS]
BEAM_SIZE, LONGEST = 3, 24
SIZES = {"num_layers": 1, "d_model": 12, "num_heads": 3, "d_ff": 11, "max_length": LONGEST}


class Exported(NamedTuple):
    """What was exported, the folder of the version, and how far both agree, as text."""

    model: Transformer
    tokenizer: Tokenizer
    version: Path
    comparison: str


def export(folder: Path) -> Exported:
    """Exports a model to `model/1` in a folder, by a process of the TensorFlow backend."""
    tokenizer = Tokenizer.train(PAIRS, 40)
    model = randomize(Transformer(40, **SIZES))
    run = save_run(folder / "run", model, tokenizer, options=SearchOptions(beam_size=BEAM_SIZE))
    options = ExportOptions(format="saved_model", output=folder / "model")
    return Exported(model, tokenizer, *export_run(run, options))
