"""What an older version wrote, and what it computed with it: see docs/reference/compatibility.md.

scripts/make_golden.py made the files. Translations may differ in ties: if the scores of two
hypotheses differ by less than `TIE`, rounding decides which is the best.
"""

import json
import os
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
from support.command_line import python, succeeds
from support.contract import to_numpy

from keras_transformer import Run, import_run, load_recipe, open_translator, train
from keras_transformer.formats import CTranslate2Translator

GOLDEN = Path(__file__).parent / "golden"
TRANSLATIONS = json.loads((GOLDEN / "translations.json").read_text("utf-8"))
TIE = 1e-4
# JAX and TensorFlow take most of the time of 200 sentences to compile.
SLOW = [pytest.mark.slow] * (os.environ.get("KERAS_BACKEND") != "torch")

pytestmark = pytest.mark.filterwarnings("ignore:Text without a known word")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    shutil.unpack_archive(GOLDEN / "files.zip", folder)
    return folder


def assert_same(translations, recorded, rtol=0.0):
    """The scores are the recorded ones, and so are the texts, but for a tie in 200 sentences."""
    found = [row[0] for row in translations]
    np.testing.assert_allclose([x.score for x in found], [x[2] for x in recorded], rtol, TIE)
    ties = sum(x.text != text for x, (_, text, _) in zip(found, recorded, strict=True))
    assert ties <= len(recorded) / 200


def sources(name):
    return [source for source, *_ in TRANSLATIONS[name]]


# An export to CTranslate2 gives the probability of tokens that no text has to the others.
RENORMALIZED = 2e-3


def assert_same_translations(translator, name, rtol=0.0):
    assert_same(translator.translate_nbest(sources(name)), TRANSLATIONS[name], rtol)


@pytest.mark.each_backend
@pytest.mark.parametrize("name", ["transformer", "language_model", "layers"])
@pytest.mark.parametrize("written_by", ["tensorflow", "jax", "torch"])
def test_models_of_every_backend_have_the_recorded_logits(written_by, name, files):
    recorded = np.load(GOLDEN / "logits.npz")
    source_ids, target_ids = ids = recorded["ids"]
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    model = keras.saving.load_model(files / "models" / written_by / f"{name}.keras")
    logits = model(inputs if name == "transformer" else ids[0])
    np.testing.assert_allclose(to_numpy(logits), recorded[name], rtol=0, atol=1e-5)


def in_both(found, recorded):
    """`found` without the keys that are newer than `recorded`."""
    if isinstance(recorded, list):
        return [in_both(*pair) for pair in zip(found, recorded, strict=True)]
    if isinstance(recorded, dict):
        return {key: in_both(found[key], value) for key, value in recorded.items()}
    return found


def test_a_recipe_has_the_recorded_settings():
    recorded = json.loads((GOLDEN / "settings.json").read_text())
    found = load_recipe(GOLDEN / "recipe.yaml").model_dump(mode="json")
    assert in_both(found, recorded) == recorded


@pytest.mark.each_backend
def test_a_run_translates_as_recorded(files):
    assert_same_translations(open_translator(files / "run"), "run")


def test_a_run_shows_its_scores_and_can_be_trained_on(files, tmp_path):
    folder = shutil.copytree(files / "run", tmp_path / "run")
    (score, *_) = json.loads((folder / "scores.json").read_text())
    shown = succeeds("info", folder)
    assert f"{score['score']:.2f}" in shown and "words that" not in shown
    run = Run.resume(folder, load_recipe(folder, ["training.steps=62"]))
    train(run, resume=True)
    assert (folder / "checkpoints" / "step-00000062").is_dir()


@pytest.mark.parametrize("form", ["export", "import"])
def test_an_export_to_ctranslate2_translates_as_the_run(form, files, tmp_path):
    pytest.importorskip("ctranslate2", reason="ctranslate2 is an optional dependency")
    folder = files / "exports" / "ctranslate2"
    options = Run.open(files / "run").recipe.evaluation.search_options()
    if form == "export":
        translator = CTranslate2Translator(folder, options)
    else:
        translator = open_translator(import_run(folder, tmp_path / "run"), options)
    assert_same_translations(translator, "run", RENORMALIZED)


PROGRAMS = {  # They need no Keras.
    "onnx": "import runpy, sys; sys.argv = ['translate.py']\n"
    "runpy.run_path('exports/onnx/translate.py', run_name='__main__')",
    "saved_model": "import sys, tensorflow as tf, tensorflow_text\n"
    "model = tf.saved_model.load('exports/saved_model/1').signatures['serving_default']\n"
    "lines = tf.constant(sys.stdin.read().splitlines())\n"
    "print(*(x.decode() for x in model(text=lines)['translation'].numpy()), sep='\\n')",
}


@pytest.mark.parametrize("name", ["onnx", pytest.param("saved_model", marks=pytest.mark.slow)])
def test_an_exported_graph_translates_as_the_run(name, files):
    pytest.importorskip({"onnx": "onnxruntime"}.get(name, "tensorflow_text"))
    text = "".join(f"{source}\n" for source in sources("run"))
    done = python("-c", PROGRAMS[name], cwd=files, input=text)
    assert done.stdout.splitlines() == [x[1] for x in TRANSLATIONS["run"]]


@pytest.mark.each_backend_if_slow
def test_a_model_of_transformers_translates_as_there(files, tmp_path):
    run = import_run(files / "marian", tmp_path / "run")
    translator = open_translator(run, run.recipe.evaluation.search_options(max_length=20))
    assert_same_translations(translator, "marian")


@pytest.mark.each_backend
@pytest.mark.parametrize(
    "engine",
    [pytest.param("keras", marks=SLOW), pytest.param("ctranslate2", marks=pytest.mark.once)],
)
def test_the_packaged_translator_translates_200_sentences_as_recorded(engine):
    if engine == "ctranslate2":
        pytest.importorskip("ctranslate2", reason="ctranslate2 is an optional dependency")
    translator = open_translator("tatoeba_en_de", engine=engine)
    rtol = RENORMALIZED if engine == "ctranslate2" else 0.0
    assert_same_translations(translator, "tatoeba_en_de", rtol)
    lines, translations = zip(*TRANSLATIONS["lines"], strict=True)  # as people bring them
    assert translator.translate(lines) == [*translations]
