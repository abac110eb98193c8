"""`export_shared_run`: a run folder for other users."""

import zipfile

import numpy as np
import pytest
from support.contract import randomize
from support.tiny_run import recipe_for, write_text

from keras_transformer.data import Tokenizer
from keras_transformer.data.token_store import TokenStore
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import UserError
from keras_transformer.formats import export_shared_run
from keras_transformer.formats.engines import open_translator
from keras_transformer.models import Transformer
from keras_transformer.recipe.settings import Recipe
from keras_transformer.runs.checkpoints import TOKENIZER_MEMBER, read_member
from keras_transformer.runs.info import run_info
from keras_transformer.runs.run import Run
from keras_transformer.training.checkpoint import save_checkpoint
from keras_transformer.translation.open_run import open_model, open_shortlist

pytestmark = pytest.mark.once
SENTENCES = ["a b c", "f e", "", "a"]


def model_of(dtype="float32"):
    sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 4, "max_length": 24}
    model = Transformer(17, **sizes, dtype=dtype)
    randomize(model)
    return model


@pytest.fixture
def run(tmp_path):
    """A run with random weights, text of its own, logs and checkpoints."""
    write_text(tmp_path)
    run = Run.create(tmp_path / "run", recipe_for(tmp_path))
    Tokenizer.train(list(run.text.pairs("train")), vocabulary_size=17).save(run.tokenizer_dir)
    model_of().save(run.model_path)
    for name in ("text", "logs", "checkpoints", "store"):
        (run.directory / name).mkdir()
    for name in ("train.en", "train.de", "test.en", "test.de"):
        (run.directory / "text" / name).write_text("a b\n")
    return run


def scores_of(run, checkpoint=None, **more):
    for number in (1.0, 2.0):
        entry = {"metric": "BLEU", "score": number, "signature": "nrefs:1", "split": "test", **more}
        run.scores.add(options=SearchOptions(), scored=run.scores.scored_model(checkpoint), **entry)
    return run.scores.entries()[-2:]


def test_the_copy_translates_like_the_run_and_has_only_what_others_need(run, tmp_path):
    comparison = export_shared_run(run, tmp_path / "copy", sentences=SENTENCES)
    assert (comparison.sentences, comparison.identical) == (4, 4)
    copy = Run.open(tmp_path / "copy")
    found, expected = (open_translator(x).translate_nbest(SENTENCES) for x in (copy, run))
    assert [rows[0].text for rows in found] == [rows[0].text for rows in expected]
    assert read_member(copy.model_path, TOKENIZER_MEMBER) == run.tokenizer().fingerprint
    files = {str(x.relative_to(copy.directory)) for x in copy.directory.rglob("*")}
    assert {x for x in files if not x.startswith("tokenizer/")} == {
        *("recipe.yaml", "model.keras", "tokenizer", "text", "text/test.en", "text/test.de")
    }
    assert str(tmp_path) not in (copy.directory / "recipe.yaml").read_text()
    assert copy.recipe.data.directory is None and copy.recipe.data.train.source == "text.en"


def test_the_copy_keeps_the_scores_of_its_model_and_info_shows_them(run, tmp_path):
    model = open_model(run)
    model.compile("sgd")
    checkpoint = save_checkpoint(run.checkpoints_dir, model, step=2, keep=1)
    of_checkpoint = scores_of(run, checkpoint)
    of_model = scores_of(run)
    scores_of(run, files=(tmp_path / "mine.en", tmp_path / "mine.de"))
    export_shared_run(run, tmp_path / "copy")
    assert Run.open(tmp_path / "copy").scores.entries() == of_model
    assert [x["score"] for x in run_info(tmp_path / "copy")["scores"]] == [2.0]
    export_shared_run(run, tmp_path / "other", checkpoint=2)
    kept = Run.open(tmp_path / "other").scores.entries()
    assert [{**entry, "checkpoint": checkpoint.name} for entry in kept] == of_checkpoint
    model_of("mixed_bfloat16").save(run.model_path)  # another model, without scores
    export_shared_run(run, tmp_path / "third")
    assert Run.open(tmp_path / "third").scores.entries() == []


def test_the_recipe_of_the_copy_names_no_folder_of_the_user(run, tmp_path):
    tree = run.recipe.model_dump(mode="json")
    tree["training"] |= {"initial_run": str(tmp_path / "first"), "teacher": str(tmp_path)}
    tree["data"]["test"] = {"source": str(tmp_path / "mine" / "test.tsv"), "tag": "<a/b>"}
    others = {"source": str(tmp_path / "news.tsv"), "weight": 2}
    tree["data"]["train"] = [tree["data"]["train"], others]
    run = Run(run.directory, Recipe.model_validate(tree))
    export_shared_run(run, tmp_path / "copy")
    recipe = Run.open(tmp_path / "copy").recipe
    assert recipe.training.initial_run is None is recipe.training.teacher
    assert recipe.data.test.model_dump() == {"source": "test.tsv", "target": None, "tag": "<a/b>"}
    assert [(x.source, x.weight) for x in recipe.data.train] == [("text.en", 1), ("news.tsv", 2)]


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_float16_weights_take_half_the_space_and_are_the_nearest(run, tmp_path, dtype):
    model_of(dtype).save(run.model_path)
    export_shared_run(run, tmp_path / "copy", "float16", SENTENCES)
    weights = open_model(run).get_weights()
    copy = open_model(Run.open(tmp_path / "copy"))
    assert copy.dtype_policy.name == "float32"
    for weight, half in zip(weights, copy.get_weights(), strict=True):
        np.testing.assert_array_equal(np.float32(weight).astype("float16"), half)
        assert half.dtype == "float32"
    sizes = [size_of_weights(x) for x in (run.model_path, tmp_path / "copy" / "model.keras")]
    saved = sum(weight.size for weight in weights) * 2
    assert sizes[0] - sizes[1] == pytest.approx(saved, rel=0.05)


def size_of_weights(path):
    with zipfile.ZipFile(path) as archive:
        return archive.getinfo("model.weights.h5").file_size


def test_adapters_are_part_of_the_copy(run, tmp_path):
    model = open_model(run)
    model.enable_lora(2)
    randomize(model)
    model.save(run.model_path)
    export_shared_run(run, tmp_path / "copy", "float16")
    copy = open_model(Run.open(tmp_path / "copy"))
    for weight, half in zip(model.get_weights(), copy.get_weights(), strict=True):
        np.testing.assert_allclose(half, weight, rtol=2**-11, atol=1e-7)


def test_weights_that_float16_cannot_hold_are_refused(run, tmp_path):
    model = open_model(run)
    model.weights[0].assign(np.full(model.weights[0].shape, 1e5))
    model.save(run.model_path)
    with pytest.raises(UserError, match="not finite in float16: embedding/embeddings"):
        export_shared_run(run, tmp_path / "copy", "float16")
    assert not (tmp_path / "copy").exists()


def test_a_copy_learns_a_shortlist_from_the_same_text_alone(run, tmp_path, monkeypatch):
    tokenizer, length = run.tokenizer(), run.recipe.data.max_length
    store = TokenStore.build(tmp_path / "s", run.text.pairs("train"), tokenizer, length)
    run.text.add_fingerprint("train", store.fingerprint)
    export_shared_run(run, tmp_path / "copy")
    copy = Run.open(tmp_path / "copy")
    monkeypatch.chdir(run.recipe.data.directory)
    with copy.text.training_store(tokenizer) as found:
        assert found.fingerprint == store.fingerprint
    with open("text.en", "a") as source, open("text.de", "a") as target:
        print("a", file=source)
        print("a", file=target)
    with pytest.raises(UserError, match="was encoded from another text"):
        open_shortlist(copy)
