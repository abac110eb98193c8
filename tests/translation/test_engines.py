"""Both engines open and translate alike."""

import pytest
from support.contract import randomize
from support.parallel_text import SENTENCES
from support.small_models import make_token_likelier

from keras_transformer import Run, SearchOptions, Tokenizer, Transformer
from keras_transformer.recipe.settings import Recipe
from keras_transformer.translation.engines import open_translator

pytestmark = pytest.mark.once


V = 60


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


def test_another_model_is_converted_again(run, capsys):
    before = open_translator(run, OPTIONS, engine="ctranslate2").translate(TEXTS)
    save_model(run, seed=1)
    expected = open_translator(run, OPTIONS).translate(TEXTS)
    found = open_translator(run, OPTIONS, engine="ctranslate2").translate(TEXTS)
    assert found == expected != before
    assert "Converting" in capsys.readouterr().err
