"""Made the files of tests/golden at version 0.1.0. tests/test_golden.py opens them ever since.

    KERAS_BACKEND=jax python scripts/make_golden.py models   # on each backend: its `.keras` files
    KERAS_BACKEND=torch python scripts/make_golden.py        # then the rest, and files.zip

Files that an older version wrote stay as they are: a new version adds files of its own.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import keras
import numpy as np
import transformers

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "tests" / "golden"
FILES = Path("files")  # in the current folder, which has files.zip in the end
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "recipes")]

from formats.test_hugging_face import SOURCES, marian_folder  # noqa: E402
from support.command_line import succeeds  # noqa: E402
from support.contract import randomize, to_numpy  # noqa: E402

from keras_transformer import (  # noqa: E402
    EncoderLayer,
    LanguageModel,
    Run,
    SinusoidalPositionalEncoding,
    TokenEmbedding,
    Transformer,
    load_recipe,
    open_translator,
    train,
)
from keras_transformer.formats import ExportOptions, export_run  # noqa: E402

SETTINGS = """data.generator={train: 400, validation: 20, test: 20} tokenizer.vocabulary_size=100
model.num_layers=1 model.d_model=16 model.num_heads=2 model.d_ff=24
training.steps=60 training.checkpoint_every=60 training.tokens_per_batch=512
training.warmup_steps=20 training.peak_learning_rate=0.02 training.validation_bleu_sentences=0
training.early_stopping_patience=null evaluation.average_last=1"""
EXPORTS = "saved_model", "ctranslate2", "onnx"
SENTENCES = ["twenty-six", "four hundred and seven", "the first of May 1987", "?", ""]
IDS = np.random.default_rng(7).integers(1, 13, (2, 2, 7)).astype("int32")
IDS[:, 0, 5:] = 0  # padding


def new_models() -> dict[str, keras.Model]:
    """Models with random weights, the same on every backend."""
    sizes = {"num_layers": 1, "d_model": 12, "num_heads": 3, "d_ff": 23, "max_length": 11}
    ids = keras.Input((None,), dtype="int32")
    x = SinusoidalPositionalEncoding()(TokenEmbedding(vocabulary_size=13, d_model=12)(ids))
    x = EncoderLayer(d_model=12, num_heads=3, d_ff=23)(x)
    models = {
        "transformer": Transformer(
            13, **{**sizes, "norm_first": True, "target_vocabulary_size": 17}
        ),
        "language_model": LanguageModel(13, **sizes),
        "layers": keras.Model(ids, keras.layers.Dense(2)(x)),
    }
    return {name: randomize(model) for name, model in models.items()}


def logits(name: str, model: keras.Model) -> np.ndarray:
    is_transformer = name == "transformer"
    inputs = {"source_ids": IDS[0], "target_ids": IDS[1]} if is_transformer else IDS[0]
    return to_numpy(model(inputs))


def make_models() -> None:
    folder = FILES / "models" / keras.config.backend()
    folder.mkdir(parents=True)
    for name, model in new_models().items():
        model.save(folder / f"{name}.keras")


def make_run() -> Run:
    """A run as training and `evaluate` leave it, without the logs of TensorBoard."""
    settings = re.split(r"\s+(?=[a-z]+\.)", SETTINGS)
    run = Run.create(FILES / "run", load_recipe("quickstart", settings))
    train(run)
    succeeds("evaluate", run.directory)
    shutil.rmtree(run.directory / "logs")
    return run


def make_exports(run: Run) -> None:
    for format in EXPORTS:
        export_run(run, ExportOptions(format=format, output=FILES / "exports" / format))


def make_marian() -> list[tuple[str, float]]:
    """A model of transformers, and what transformers translates with it."""
    model = marian_folder(FILES / "marian", shared=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(FILES / "marian")
    texts = tokenizer(SOURCES, return_tensors="pt", padding=True)
    wanted = {"return_dict_in_generate": True, "output_scores": True}
    found = model.generate(**texts, max_length=21, **wanted)
    decoded = tokenizer.batch_decode(found.sequences, skip_special_tokens=True)
    return [*zip(decoded, found.sequences_scores.tolist(), strict=True)]


def translations(name: str | Run, sentences: list[str]) -> list[tuple[str, float]]:
    """The best translation of each sentence, and its score."""
    found = open_translator(name).translate_nbest(sentences)
    return [(hypothesis.text, hypothesis.score) for (hypothesis, *_) in found]


def main() -> None:
    run = make_run()
    make_exports(run)
    text = ROOT / "saved_models" / "tatoeba_en_de" / "text" / "test.en"
    texts = {
        "marian": (SOURCES, make_marian()),
        "run": (SENTENCES, translations(run, SENTENCES)),
        "tatoeba_en_de": (sentences := text.read_text("utf-8").splitlines()[:200],)
        + (translations("tatoeba_en_de", sentences),),
    }
    rows = {name: [*zip(*sides, strict=True)] for name, sides in texts.items()}
    write("translations", {name: [(x, *y) for x, y in found] for name, found in rows.items()})
    write("settings", load_recipe(GOLDEN / "recipe.yaml").model_dump(mode="json"))
    found = {name: logits(name, model) for name, model in new_models().items()}
    np.savez_compressed(GOLDEN / "logits.npz", ids=IDS, **found)
    shutil.make_archive(str(FILES), "zip", FILES)


def write(name: str, content: dict) -> None:
    text = json.dumps(content, ensure_ascii=False, indent=0)
    (GOLDEN / f"{name}.json").write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    make_models() if sys.argv[1:] == ["models"] else main()
