"""Both engines open and translate alike."""

import pytest
from support.contract import randomize
from support.parallel_text import SENTENCES
from support.small_models import make_token_likelier

from keras_transformer import Run, SearchOptions, Tokenizer, Transformer
from keras_transformer.recipe.settings import Recipe
from keras_transformer.translation.open_run import open_translator

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


def test_both_engines_translate_alike_and_follow_the_model(tmp_path, capsys):
    run = new_run(tmp_path / "run")
    before = open_translator(run, OPTIONS, engine="ctranslate2").translate(TEXTS)
    save_model(run, seed=1)
    expected = open_translator(run, OPTIONS).translate(TEXTS)
    found = open_translator(run, OPTIONS, engine="ctranslate2").translate(TEXTS)
    assert found == expected != before
    assert "Converting" in capsys.readouterr().err


def test_what_an_engine_does_not_have_is_refused(tmp_path):
    run = new_run(tmp_path / "run")
    with pytest.raises(ValueError, match="Received: 1 runs, .* use_shortlist=True"):
        open_translator(run, OPTIONS, engine="ctranslate2", use_shortlist=True)
    with pytest.raises(ValueError, match="Received: 2 runs"):
        open_translator([run, run], OPTIONS, engine="ctranslate2")
