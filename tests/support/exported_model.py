"""A model server for tests that serves a small exported Transformer.

`python -m support.exported_model FOLDER [FLAGS]` exports a model with random weights to
FOLDER/model/1. The stand-in server serves it; FLAGS are the server's.
"""

import sys
from pathlib import Path

WORDS = "a bad cab fed a deaf face add bead cafe dab each fad".split()
VOCABULARY_SIZE, MAX_LENGTH = 30, 24  # tokens


def export(directory: Path) -> None:
    import keras

    from keras_transformer.data import Tokenizer
    from keras_transformer.decoding.options import SearchOptions
    from keras_transformer.export.saved_model import export_saved_model
    from keras_transformer.models import Transformer
    from support.contract import randomize

    keras.utils.set_random_seed(0)
    pairs = [(word, word[::-1]) for word in WORDS]
    tokenizer = Tokenizer.train(pairs, VOCABULARY_SIZE)
    model = Transformer(
        VOCABULARY_SIZE, num_layers=1, d_model=12, num_heads=3, d_ff=11, max_length=MAX_LENGTH
    )
    randomize(model)
    export_saved_model(model, tokenizer, directory, options=SearchOptions(beam_size=3))


def main(folder: Path) -> None:
    export(folder / "model")
    from support.stand_in_server import __main__ as stand_in_server

    flags = ["--model_name", "model", "--model_base_path", str(folder / "model")]
    sys.argv[1:] = [*flags, "--port", "0", "--rest_api_port", "0", *sys.argv[2:]]
    stand_in_server.main()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
