"""The export as a whole; what its signatures give is in test_translation_graph.py."""

from pathlib import Path

import keras
import numpy as np
import pytest
from support.contract import randomize
from support.seq2seq_models import SIZES
from support.seq2seq_models import new_model as new_seq2seq_model
from support.small_models import small_model
from support.tiny_run import recipe_for, write_text

from keras_transformer.data import Tokenizer
from keras_transformer.errors import UserError
from keras_transformer.export import export_run_saved_model, export_saved_model
from keras_transformer.export.clean_process import run_signatures
from keras_transformer.models import Transformer
from keras_transformer.runs.run import Run
from keras_transformer.training.checkpoint import save_checkpoint
from keras_transformer.translation.engines import open_translator
from keras_transformer.translation.open_run import open_model
from keras_transformer.translation.translator import Translator

SIZES_OF_MODEL = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 4, "max_length": 24}
SENTENCES = ["a b c", "f e", "d"]


def test_the_first_version_appears_whole_and_compared(exporting):
    exported = exporting.answers["exported"]
    version = Path(exported["directory"])
    assert version == exporting.folder / "model" / "1"
    assert (version / "saved_model.pb").is_file()
    assert (version / "assets.extra" / "tf_serving_warmup_requests").is_file()
    share, difference = exported["comparison"].split("; their scores differ by at most ")
    assert share == "100.0% of 6 translations equal the model's"
    assert float(difference.split(" nats")[0]) < 1e-4
    assert exported["min_consumer"] > 0
    assert {path.name for path in version.parent.iterdir()} == {
        "1",
        "batching_parameters.txt",
        "docker-compose.yml",
        "models.config",
    }


def test_it_translates_with_a_shortlist(exporting):
    """The comparison is with a `Translator` of the same shortlist."""
    assert exporting.answers["limited"].startswith("100.0% of 6 translations equal the model's")
    shortlists = exporting.answers["shortlists"]
    found = [[id for id in row if id] for row in shortlists["found"]]
    assert found == shortlists["expected"]
    assert len(shortlists["found"][0]) == 1 + max(map(len, found))  # and padding


def test_a_model_that_translates_otherwise_leaves_nothing(exporting):
    """A version 2 that the process tried to write with other translations than the model's."""
    failing = exporting.answers["failing"]
    assert failing["error"].startswith("the SavedModel translates 'a bad cab' to 'nonsense' with")
    assert "2" not in failing["left"]
    assert not [name for name in failing["left"] if name.startswith(".partial")]


def test_a_full_disk_leaves_nothing_and_is_one_line(exporting):
    full = exporting.answers["full disk"]
    assert full["error"] == f"no space left on the disk for {exporting.folder / 'full' / '1'}"
    assert full["left"] == []


def test_it_is_written_on_tensorflow_alone(exporting, tmp_path):
    """On TensorFlow the same call complains of the tokenizer, which is another model's."""
    tokenizer = Tokenizer.load(exporting.folder / "tokenizer")
    rule = "must be the model's tokenizer"
    if keras.config.backend() != "tensorflow":
        rule = "KERAS_BACKEND=tensorflow"
    with pytest.raises(ValueError, match=rule):
        export_saved_model(small_model(), tokenizer, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_model_in_mixed_precision_is_exported_in_float32(exporting):
    mixed = exporting.answers["mixed precision"]
    np.testing.assert_allclose(mixed["found"], mixed["expected"], atol=1e-5)


def test_two_vocabularies_stay_apart_in_each_loader(exporting):
    texts = exporting.answers["two vocabularies"]
    assert texts["found"] == texts["expected"]
    assert any(text.isupper() for text in texts["found"])


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"is no run folder: it holds no recipe\.yaml"):
        export_run_saved_model(tmp_path)


@pytest.fixture
def run(tmp_path):
    """A run with random weights, as training leaves it."""
    write_text(tmp_path)
    run = Run.create(tmp_path / "run", recipe_for(tmp_path))
    pairs = list(run.text.pairs("train"))
    Tokenizer.train(pairs, vocabulary_size=17).save(run.tokenizer_dir)
    model = Transformer(17, **SIZES_OF_MODEL)
    randomize(model)
    model.save(run.model_path)
    return run


@pytest.mark.slow
def test_a_run_is_exported_from_any_backend(run, tmp_path):
    options = run.recipe.evaluation.search_options(beam_size=2)
    first = export_run_saved_model(run.directory, tmp_path / "models", options)
    second = export_run_saved_model(run.directory, tmp_path / "models", options)
    assert [path.directory.name for path in (first, second)] == ["1", "2"]
    sentences = [source for source, _ in run.text.pairs("test")]
    (found,) = run_signatures(second.directory, [("serving_default", {"text": sentences})])
    translator = Translator(open_model(run), run.tokenizer(), options)
    assert found["translation"] == translator.translate(sentences)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"no_repeat_ngram_size": 2, "num_beam_groups": 2, "diversity_penalty": 0.5},
        {"coverage_penalty": 0.3, "repetition_penalty": 1.5, "min_length": 3},
        {"length_penalty_form": "power", "length_penalty": 1.0, "max_length": 7},
    ],
)
def test_every_search_option_is_exported(run, options, tmp_path):
    options = run.recipe.evaluation.search_options(**options)
    export_run_saved_model(run.directory, tmp_path / "models", options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"attention_pattern": "full", "position_encoding": "rotary"},
        {"position_encoding": "t5", "norm_first": True},
        {"attention_pattern": "local", "attention_window": 3, "activation": "gelu"},
        {"attention_pattern": "strided", "attention_window": 3, "activation": "elu"},
        {"attention_pattern": "fixed", "attention_window": 3, "activation": "softplus"},
        {"position_encoding": "alibi", "activation": "mish", "normalization": "batch"},
    ],
)
def test_every_setting_of_the_transformer_is_exported(run, settings, tmp_path):
    model = Transformer(17, **SIZES_OF_MODEL, **settings)
    randomize(model)
    model.save(run.model_path)
    export_run_saved_model(run.directory, tmp_path / "models")


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_every_architecture_is_exported(run, name, tmp_path):
    """The export compares itself with the model, and raises an error if they differ."""
    model = new_seq2seq_model(name, vocabulary_size=17, target_vocabulary_size=None, max_length=24)
    model.save(run.model_path)
    exported = export_run_saved_model(run.directory, tmp_path / "models")
    nbest = ("translate_nbest", {"text": ["a b", "c"]})
    found = run_signatures(exported.directory, [nbest])[0]["alignments"]
    has_attention = hasattr(model, "source_attention")
    assert has_attention == any(position >= 0 for row in found for x in row for position in x)


@pytest.mark.slow
def test_a_checkpoint_is_exported_from_any_backend(run, tmp_path):
    model = open_model(run)
    model.compile("sgd", "mse")
    save_checkpoint(run.checkpoints_dir, model, step=2, keep=1)
    run.model_path.unlink()
    exported = export_run_saved_model(run.directory, tmp_path / "models", checkpoint="last")
    sentences = [source for source, _ in run.text.pairs("test")]
    (found,) = run_signatures(exported.directory, [("serving_default", {"text": sentences})])
    translator = open_translator(run, checkpoint=2)
    assert found["translation"] == translator.translate(sentences)


@pytest.mark.slow
def test_a_run_without_a_model_is_refused_from_any_backend(run, tmp_path):
    run.model_path.unlink()
    with pytest.raises(UserError, match="has no model and no checkpoint yet"):
        export_run_saved_model(run.directory, tmp_path / "models")
    assert not (tmp_path / "models").exists()
