"""The conversion that a run keeps for the engine ctranslate2."""

import shutil

import pytest
from support.contract import randomize
from support.parallel_text import SENTENCES
from support.small_models import make_token_likelier

from keras_transformer import Run, SearchOptions, Tokenizer, Transformer, UserError
from keras_transformer.recipe.settings import Recipe
from keras_transformer.translation import ctranslate2_translator as conversion
from keras_transformer.translation.open_run import open_model, open_translator

pytest.importorskip("ctranslate2", reason="ctranslate2 is an optional dependency")
pytestmark = pytest.mark.once

V = 60
# Short and greedy, because the hypotheses of random weights nearly tie.
OPTIONS = SearchOptions(beam_size=1, max_length=3)
TEXTS = [source for source, _ in SENTENCES[:3]]


def save_model(run, seed, **arguments):
    model = Transformer(V, num_layers=1, d_model=8, num_heads=2, d_ff=8, max_length=40, **arguments)
    randomize(model, seed)
    for id in (0, 2):
        make_token_likelier(model, id, -20.0)
    model.save(run.model_path)


def new_run(folder, seed=0):
    files = {"source": "text.en", "target": "text.de"}
    data = {"train": files, "validation": files, "test": files, "directory": folder}
    recipe = Recipe.model_validate({"name": "run", "data": data})
    folder.mkdir()
    (folder / "recipe.yaml").write_text(recipe.to_yaml())
    run = Run.open(folder)
    Tokenizer.train(SENTENCES, vocabulary_size=V).save(run.tokenizer_dir)
    save_model(run, seed)
    return run


@pytest.fixture(scope="module")
def converted_run(tmp_path_factory):
    run = new_run(tmp_path_factory.mktemp("runs") / "run")
    conversion.converted(run)
    return run


@pytest.fixture
def run(converted_run, tmp_path):
    """A copy with the same times."""
    return Run.open(shutil.copytree(converted_run.directory, tmp_path / "run"))


def is_converted_again(run):
    folder = run.directory / conversion.FOLDER
    is_needed = not conversion._is_current(run, folder)
    conversion.converted(run)
    assert conversion._is_current(run, folder)
    return is_needed


def test_a_model_is_converted_once(run):
    (run.tokenizer_dir / ".ipynb_checkpoints").mkdir()
    assert not is_converted_again(run)
    shutil.rmtree(run.directory / conversion.FOLDER)
    assert is_converted_again(run)
    assert not is_converted_again(run)


def test_another_model_is_converted_again(run, capsys):
    before = open_translator(run, OPTIONS, engine="ctranslate2").translate(TEXTS)
    save_model(run, seed=1)
    expected = open_translator(run, OPTIONS).translate(TEXTS)
    found = open_translator(run, OPTIONS, engine="ctranslate2").translate(TEXTS)
    assert found == expected != before
    assert "Converting" in capsys.readouterr().err


def replace_by_file(folder):
    shutil.rmtree(folder)
    folder.write_text("no folder")


@pytest.mark.parametrize(
    "damage",
    [
        replace_by_file,
        lambda folder: (folder / conversion.STAMPS).write_text("["),
        lambda folder: (folder / conversion.STAMPS).write_text("{}"),
    ],
)
def test_a_conversion_without_its_stamps_is_made_again(damage, run):
    damage(run.directory / conversion.FOLDER)
    assert is_converted_again(run)


def test_failures_leave_no_conversion(run, monkeypatch):
    save_model(run, seed=0, position_encoding="alibi")
    with pytest.raises(UserError, match="'alibi'; use the engine keras"):
        conversion.converted(run)
    with monkeypatch.context() as patch:
        patch.setattr(conversion.os, "access", lambda *_: False)  # root may write everywhere
        with pytest.raises(UserError, match="must be writable.*use the engine keras"):
            conversion.converted(run)
    run.model_path.unlink()
    with pytest.raises(UserError, match="no model"):
        conversion.converted(run)
    assert not list(run.directory.glob(".partial*"))


def test_a_model_replaced_while_it_is_converted_is_converted_again(run, monkeypatch):
    def load_and_replace(run):
        model = open_model(run)
        save_model(run, seed=2)
        return model

    save_model(run, seed=1)
    monkeypatch.setattr(conversion, "open_model", load_and_replace)
    conversion.converted(run)
    monkeypatch.undo()
    assert is_converted_again(run)


def test_a_conversion_that_translates_otherwise_is_not_kept(run, monkeypatch):
    from keras_transformer.exchange import ctranslate2 as writer

    save_model(run, seed=1)
    monkeypatch.setattr(writer, "_encodings", lambda model: 1 - writer.position_table(model))
    with pytest.raises(UserError, match="the CTranslate2 model translates "):
        conversion.converted(run)
    assert not list(run.directory.glob(".partial*"))
