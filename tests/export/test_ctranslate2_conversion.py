"""The conversion that a run keeps for the engine ctranslate2."""

import shutil
import subprocess
import sys

import pytest
from support.contract import randomize
from support.parallel_text import SENTENCES
from support.small_models import make_token_likelier

from keras_transformer import Run, SearchOptions, Tokenizer, Transformer, UserError
from keras_transformer.export import ctranslate2_conversion as conversion
from keras_transformer.recipe.settings import Recipe
from keras_transformer.translation.engines import open_translator

pytest.importorskip("ctranslate2", reason="ctranslate2 is an optional dependency")

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
    return Run.open(shutil.copytree(converted_run.directory, tmp_path / "run"))


def is_converted_again(run, capsys):
    capsys.readouterr()
    conversion.converted(run)
    message = capsys.readouterr().err
    assert conversion._is_current(run, run.directory / conversion.FOLDER)
    return "Converting" in message


def test_a_model_is_converted_once(run, capsys):
    assert not is_converted_again(run, capsys)
    shutil.rmtree(run.directory / conversion.FOLDER)
    assert is_converted_again(run, capsys)
    assert not is_converted_again(run, capsys)


def test_another_model_is_converted_again(run, capsys):
    before = open_translator(run, OPTIONS, engine="ctranslate2").translate(TEXTS)
    save_model(run, seed=1)
    assert is_converted_again(run, capsys)
    expected = open_translator(run, OPTIONS).translate(TEXTS)
    assert (
        open_translator(run, OPTIONS, engine="ctranslate2").translate(TEXTS) == expected != before
    )


@pytest.mark.parametrize("name", ["model.bin", "config.json", "tokenizer/source.model"])
def test_a_damaged_file_is_converted_again(name, run, capsys):
    path = run.directory / conversion.FOLDER / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert is_converted_again(run, capsys)


@pytest.mark.parametrize("hashes", ["", "[", "[]", "{}"])
def test_damaged_or_missing_hashes_are_converted_again(hashes, run, capsys):
    path = run.directory / conversion.FOLDER / conversion.HASHES
    path.write_text(hashes) if hashes else path.unlink()
    assert is_converted_again(run, capsys)


def test_a_missing_and_an_additional_file_are_converted_again(run, capsys):
    folder = run.directory / conversion.FOLDER
    (folder / "vmap.txt").write_text("a\tb\n")
    assert is_converted_again(run, capsys)
    assert not (folder / "vmap.txt").exists()
    (folder / "model.bin").unlink()
    assert is_converted_again(run, capsys)


def test_the_conversion_of_another_run_is_converted_again(run, tmp_path, capsys):
    other = new_run(tmp_path / "other", seed=2)
    shutil.copytree(run.directory / conversion.FOLDER, other.directory / conversion.FOLDER)
    assert is_converted_again(other, capsys)


def test_a_file_in_the_place_of_the_folder_is_replaced(run, capsys):
    shutil.rmtree(run.directory / conversion.FOLDER)
    (run.directory / conversion.FOLDER).write_text("no folder")
    assert is_converted_again(run, capsys)


def test_failures_leave_no_conversion(run):
    save_model(run, seed=0, position_encoding="alibi")
    with pytest.raises(UserError, match="'alibi'; use the engine keras"):
        conversion.converted(run)
    run.model_path.unlink()
    with pytest.raises(UserError, match="no model"):
        conversion.converted(run)
    assert not list(run.directory.glob(".partial*"))


def test_a_model_replaced_while_it_is_converted_is_refused(run, monkeypatch):
    save_model(run, seed=1)
    load = Run.model

    def load_and_replace(run):
        model = load(run)
        save_model(run, seed=2)
        return model

    monkeypatch.setattr(Run, "model", load_and_replace)
    with pytest.raises(UserError, match="changed while it was converted"):
        conversion.converted(run)
    monkeypatch.undo()
    expected = open_translator(run, OPTIONS).translate(TEXTS)
    assert open_translator(run, OPTIONS, engine="ctranslate2").translate(TEXTS) == expected


def test_a_folder_in_the_tokenizer_does_no_harm(run, capsys):
    (run.tokenizer_dir / ".ipynb_checkpoints").mkdir()
    assert not is_converted_again(run, capsys)


def test_a_run_that_cannot_be_written_is_named(run, monkeypatch):
    save_model(run, seed=1)
    monkeypatch.setattr(conversion.os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(UserError, match="must be writable.*use the engine keras"):
        conversion.converted(run)


def test_the_second_time_no_backend_is_imported(run):
    (run.directory / "in").write_text("".join(f"{text}\n" for text in TEXTS))
    code = (
        "import sys; from keras_transformer.cli import main\n"
        f"main(['translate', {str(run.directory)!r}, {str(run.directory / 'in')!r}, '--engine', "
        "'ctranslate2'], standalone_mode=False)\n"
        "print({'keras', 'tensorflow', 'jax', 'torch', 'sacrebleu'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    *lines, imported = found.stdout.decode().splitlines()
    assert len(lines) == len(TEXTS)
    assert imported == "set()"
    assert b"Converting" not in found.stderr


def test_unknown_engines_are_refused(run):
    with pytest.raises(ValueError, match=r"\['keras', 'ctranslate2'\]. Received: engine='marian'"):
        open_translator(run, engine="marian")
