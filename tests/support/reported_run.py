"""A run folder as a training and an evaluation leave it, without the time that they take."""

from pathlib import Path

import keras

from keras_transformer import Run, Transformer
from keras_transformer.data import Tokenizer
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.training.tensorboard import TensorBoardWriter
from support.tiny_run import recipe_for

SOURCES = ["a b c", "b c d e", "<script>alert(1)</script>", "a", "קטן אב", "d e a b", "a & b"]
TARGETS = ["c b a", "e d c b", "<b>bold</b>", "a", "בא ןטק", "b a e d", "b & a"]
HYPOTHESES = ["c b a", "e d c", "<i>lost</i>", "b", "בא ןטק", "d e a b", "b & a"]
LOGS = {
    "loss": {1: 4.5, 2: 3.25, 4: 2.0},
    "learning_rate": {1: 1e-4, 2: 2e-4, 4: 1.5e-4},
    "tokens_per_second": {2: 1000.0, 4: 1200.0},
    "validation/loss": {2: 3.5, 4: 2.5},
    "validation/bleu": {2: 0.0, 4: 12.5},
}


def make_run(folder: Path) -> Run:
    """Writes the text and the run to a folder."""
    (folder / "text.en").write_text("".join(f"{line}\n" for line in SOURCES), "utf-8")
    (folder / "text.de").write_text("".join(f"{line}\n" for line in TARGETS), "utf-8")
    recipe = recipe_for(folder, evaluation={"average_last": 1}, training={"steps": 4})
    recipe = recipe.model_copy(update={"description": "<b>bold</b> & more"})
    run = Run.create(folder / "run", recipe)
    tokenizer = Tokenizer.train(list(run.text.pairs("train")), vocabulary_size=60)
    tokenizer.save(run.tokenizer_dir)
    keras.utils.set_random_seed(3)
    size = tokenizer.source_vocabulary_size
    Transformer(size, num_layers=1, d_model=8, num_heads=2, d_ff=8, max_length=40).save(
        run.model_path
    )
    with TensorBoardWriter(run.logs_dir) as writer:
        for name, values in LOGS.items():
            for step, value in values.items():
                writer.report(step, {name: value})
    scored = run.scores.scored_model(None)
    run.scores.keep_hypotheses("test", SOURCES, HYPOTHESES, scored)
    entry = {"split": "test", "metric": "BLEU", "score": 43.21, "signature": "nrefs:1|x<y"}
    run.scores.add(**entry, options=SearchOptions())
    return run
