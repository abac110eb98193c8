"""Run folders of other runs, for other users, and of models that were trained in Python."""

import zipfile

import keras
import numpy as np
import pytest
from support.cases import once
from support.command_line import succeeds
from support.contract import randomize

from keras_transformer import (
    LanguageModel,
    ParallelDataset,
    Run,
    SearchOptions,
    SlicedLogitsTrainer,
    Tokenizer,
    Transformer,
    Translator,
    UserError,
    open_model,
    open_shortlist,
    open_translator,
    save_run,
)
from keras_transformer.data.token_store import TokenStore
from keras_transformer.formats import export_shared_run
from keras_transformer.models.base import merge_lora
from keras_transformer.recipe.settings import Recipe
from keras_transformer.runs.checkpoints import TOKENIZER_MEMBER, read_member
from keras_transformer.runs.info import run_info
from keras_transformer.training.checkpoint import save_checkpoint

PAIRS = [("abc de. f", "fed. cba d"), ("de abc", "cba de")] * 9
SENTENCES = ["abc de", "f. de abc", "a b c"]
IDS = {"source_ids": np.array([[5, 6, 3]]), "target_ids": np.array([[2, 7, 8]])}


def new_model(vocabulary_size=16, **settings):
    sizes = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 11, "max_length": 24}
    return Transformer(vocabulary_size, **{**sizes, **settings})


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(PAIRS, vocabulary_size=16, model_type="bpe")


def adapted_model(**settings):
    """A model with adapters that change what it computes."""
    model = new_model(**settings)
    model.encoder.trainable = False
    model.decoder.enable_lora(rank=2, lora_alpha=3)
    randomize(model)
    return model


def logits(model):
    return keras.ops.convert_to_numpy(model(IDS))


@pytest.mark.each_backend
@pytest.mark.parametrize("settings", [{"norm_first": True, "num_layers": 2}, *once({})])
def test_merged_adapters_compute_the_same_and_all_layers_train(settings):
    model = adapted_model(**settings)
    before = logits(model)
    merged = merge_lora(model)
    np.testing.assert_allclose(logits(merged), before, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(logits(model), before)
    assert not any("lora" in weight.path for weight in merged.weights)
    assert merged.count_params() == new_model(**settings).count_params()
    assert merged.decoder.trainable_weights and not merged.encoder.trainable_weights


@pytest.mark.each_backend
def test_adapters_of_layers_of_keras_are_merged():
    inputs = keras.Input((3,), dtype="int32")
    layers = keras.layers.Embedding(7, 4), keras.layers.Dense(5)
    model = keras.Model(inputs, layers[1](layers[0](inputs)))
    for layer in layers:
        layer.enable_lora(2)
    randomize(model)
    merged = merge_lora(model)
    ids = np.array([[1, 2, 6]])
    np.testing.assert_allclose(merged.predict(ids), model.predict(ids), rtol=0, atol=1e-6)
    assert len(merged.weights) == 3


@pytest.mark.each_backend
def test_a_quantized_model_is_not_merged():
    model = adapted_model()
    model.quantize("int8")
    with pytest.raises(ValueError, match="Merge LoRA before `quantize`"):
        merge_lora(model)


@pytest.mark.each_backend_if_slow
@pytest.mark.parametrize(
    "kind", ["fitted", *once("trainer", "adapted", "float16", "mixed_bfloat16")]
)
def test_a_saved_run_translates_as_its_model(tokenizer, tmp_path, kind):
    model = new_model(dtype=kind if "16" in kind else "float32")
    if kind == "adapted":
        model = adapted_model()
    given = SlicedLogitsTrainer(model) if kind == "trainer" else model
    if kind == "fitted":
        model.compile("adam")
        model.fit(ParallelDataset(PAIRS, tokenizer), verbose=0)
    options = SearchOptions(beam_size=3)
    of_fit = None if kind == "fitted" else tokenizer
    languages = {"source_language": "en", "target_language": "de"}
    run = save_run(tmp_path / "my run", given, of_fit, **languages, options=options)
    opened = Run.open(run.directory)
    assert opened.recipe == run.recipe and opened.recipe.name == "my_run"
    assert opened.recipe.evaluation.beam_size == 3
    loaded = open_model(opened)
    assert loaded.dtype_policy.name == "float32"
    tolerance = 1e-6 if model.dtype_policy.name == "float32" else 0.1  # bfloat16 has 8 bits
    np.testing.assert_allclose(logits(loaded), logits(model), rtol=0, atol=tolerance)
    if tolerance < 0.05:
        expected = Translator(model, tokenizer, options).translate(SENTENCES)
        assert open_translator(opened).translate(SENTENCES) == expected


def test_every_command_takes_a_saved_run(tokenizer, tmp_path):
    pytest.importorskip("ctranslate2")
    run = save_run(tmp_path / "mine", adapted_model(), tokenizer).directory
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("".join(f"{line}\n" for line in SENTENCES))
    target.write_text("".join(f"{line}\n" for line in SENTENCES))
    assert len(succeeds("translate", run, source).splitlines()) == 3
    assert "BLEU" in succeeds("evaluate", run, "--files", source, target)
    assert "perplexity" in succeeds("score", run, source, target, "--summary")
    for format in ("ctranslate2", "run"):
        succeeds("export", run, "--format", format, "--output", tmp_path / format)
    shown = succeeds("info", run)
    assert "Trained in Python" in shown
    assert "evaluate" not in shown and "in the recipe" not in shown  # It has no text.
    succeeds("report", run, "--output", tmp_path / "report.html")
    succeeds("attention", run, "abc", "--output", tmp_path / "attention.html")


def test_what_no_command_could_open_is_refused(tokenizer, tmp_path):
    quantized, language = new_model(), LanguageModel(16, num_layers=1, d_model=8, num_heads=2)
    quantized.quantize("int8")
    refused = [
        (quantized, tokenizer, {}, ValueError, "must not be quantized"),
        (language, tokenizer, {}, ValueError, "needs a sequence-to-sequence model"),
        (new_model(17), tokenizer, {}, ValueError, "are .17, 17, 0. in the model"),
        (new_model(15), tokenizer, {}, ValueError, "more source tokens than the model"),
        (new_model(), None, {}, UserError, "The model has no tokenizer"),
        (new_model(), tokenizer, {"source_language": "Klingon!"}, UserError, "source_language"),
    ]
    for model, given, languages, error, message in refused:
        with pytest.raises(error, match=message):
            save_run(tmp_path / "run", model, given, **languages)
        assert not (tmp_path / "run").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is not empty"):
        save_run(tmp_path, new_model(), tokenizer)


# --- Copies for other users ----------------------------------------------------------------------

TEXTS = ["a b c", "f e", "", "a"]


def half_model():
    return randomize(new_model(17, dtype="mixed_bfloat16"))


@pytest.fixture
def run(run):
    """A run with text of its own, logs and checkpoints."""
    for name in ("text", "logs", "checkpoints", "store"):
        (run / name).mkdir()
    for name in ("train.en", "train.de", "test.en", "test.de"):
        (run / "text" / name).write_text("a b\n")
    return Run.open(run)


def scores_of(run, checkpoint=None, **more):
    for number in (1.0, 2.0):
        entry = {"metric": "BLEU", "score": number, "signature": "nrefs:1", "split": "test", **more}
        run.scores.add(options=SearchOptions(), scored=run.scores.scored_model(checkpoint), **entry)
    return run.scores.entries()[-2:]


def test_the_copy_translates_like_the_run_and_has_only_what_others_need(run, tmp_path):
    comparison = export_shared_run(run, tmp_path / "copy", sentences=TEXTS)
    assert (comparison.sentences, comparison.identical) == (4, 4)
    copy = Run.open(tmp_path / "copy")
    found, expected = (open_translator(x).translate_nbest(TEXTS) for x in (copy, run))
    assert [rows[0].text for rows in found] == [rows[0].text for rows in expected]
    assert read_member(copy.model_path, TOKENIZER_MEMBER) == run.tokenizer().fingerprint
    files = {str(x.relative_to(copy.directory)) for x in copy.directory.rglob("*")}
    assert {x for x in files if not x.startswith("tokenizer/")} == {
        *("recipe.yaml", "model.keras", "tokenizer", "text", "text/test.en", "text/test.de")
    }
    assert str(run.recipe.data.directory) not in copy.recipe_path.read_text()
    assert copy.recipe.data.directory is None and copy.recipe.data.train.source == "text.en"


def test_the_copy_keeps_the_scores_of_its_model_and_info_shows_them(run, tmp_path):
    model = open_model(run)
    model.compile("sgd")
    checkpoint = save_checkpoint(run.checkpoints_dir, model, step=2, keep=1)
    of_checkpoint = scores_of(run, checkpoint)
    of_model = scores_of(run)
    scores_of(run, files=(tmp_path / "mine.en", tmp_path / "mine.de"))
    export_shared_run(run, tmp_path / "copy", sentences=["a"])
    assert Run.open(tmp_path / "copy").scores.entries() == of_model
    assert [x["score"] for x in run_info(tmp_path / "copy")["scores"]] == [2.0]
    export_shared_run(run, tmp_path / "other", sentences=["a"], checkpoint=2)
    kept = Run.open(tmp_path / "other").scores.entries()
    assert [{**entry, "checkpoint": checkpoint.name} for entry in kept] == of_checkpoint
    half_model().save(run.model_path)  # another model, without scores
    export_shared_run(run, tmp_path / "third", sentences=["a"])
    assert Run.open(tmp_path / "third").scores.entries() == []


def test_the_recipe_of_the_copy_names_no_folder_of_the_user(run, tmp_path):
    tree = run.recipe.model_dump(mode="json")
    tree["training"] |= {"initial_run": str(tmp_path / "first"), "teacher": str(tmp_path)}
    tree["training"] |= {"lora_rank": 2, "lora_parts": ["decoder"], "frozen": ["embedding"]}
    tree["data"]["test"] = {"source": str(tmp_path / "mine" / "test.tsv"), "tag": "<a/b>"}
    others = {"source": str(tmp_path / "news.tsv"), "weight": 2}
    tree["data"]["train"] = [tree["data"]["train"], others]
    run = Run(run.directory, Recipe.model_validate(tree))
    export_shared_run(run, tmp_path / "copy", sentences=["a"])
    recipe = Run.open(tmp_path / "copy").recipe
    assert recipe.training.initial_run is None is recipe.training.teacher
    assert (recipe.training.lora_rank, recipe.training.frozen) == (None, [])
    assert recipe.data.test.model_dump() == {"source": "test.tsv", "target": None, "tag": "<a/b>"}
    assert [(x.source, x.weight) for x in recipe.data.train] == [("text.en", 1), ("news.tsv", 2)]


def test_float16_weights_take_half_the_space_and_are_the_nearest(run, tmp_path):
    half_model().save(run.model_path)
    export_shared_run(run, tmp_path / "copy", "float16", ["a"])
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
    export_shared_run(run, tmp_path / "copy", sentences=["a"])
    copy = Run.open(tmp_path / "copy")
    monkeypatch.chdir(run.recipe.data.directory)
    with copy.text.training_store(tokenizer) as found:
        assert found.fingerprint == store.fingerprint
    with open("text.en", "a") as source, open("text.de", "a") as target:
        print("a", file=source)
        print("a", file=target)
    with pytest.raises(UserError, match="was encoded from another text"):
        open_shortlist(copy)
