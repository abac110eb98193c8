"""The settings that `init` chooses for a corpus."""

import dataclasses
import itertools
import random

import pytest

from keras_transformer import Tokenizer, UserError, load_recipe
from keras_transformer.data.corpus_report import examine
from keras_transformer.data.held_out import hold_out
from keras_transformer.recipe.new_recipe import Text, choose_settings


def corpus(count):
    """Sentences of eight random words: any vocabulary is possible."""
    rng = random.Random(1)
    pool = ["".join(rng.choices("abcdefghijklmnopqrst", k=rng.randint(3, 9))) for _ in range(4_000)]
    return [tuple(" ".join(rng.choices(pool, k=8)) for _ in range(2)) for _ in range(count)]


@pytest.fixture(scope="module")
def report():
    return examine(corpus(1_000))


def of_size(report, pairs):
    """A report of a corpus with more pairs than its sample."""
    source, target = (
        dataclasses.replace(x, different=pairs) for x in (report.source, report.target)
    )
    return dataclasses.replace(report, pairs=pairs, source=source, target=target)


def written(settings, tmp_path, text=None):
    text = text or Text(tmp_path / "a.en", tmp_path / "a.de", "en", "de")
    path = tmp_path / "recipe.yaml"
    path.write_text(settings.to_yaml("some-name", text), encoding="utf-8")
    return load_recipe(path)


def test_larger_corpora_get_larger_models_and_batches_but_less_dropout_and_fewer_passes(
    report, tmp_path
):
    sizes = (1_000, 30_000, 170_000, 500_000, 1_000_000, 4_500_000)
    chosen = [choose_settings(of_size(report, pairs)) for pairs in sizes]
    recipes = [written(settings, tmp_path) for settings in chosen]
    widths = [recipe.model.sizes["d_model"] for recipe in recipes]
    assert widths == [128, 128, 192, 256, 512, 512]
    dropout_rates = [recipe.model.sizes["dropout_rate"] for recipe in recipes]
    assert dropout_rates == [0.3, 0.2, 0.1, 0.1, 0.1, 0.1]
    batches = [x.training.tokens_per_batch * x.training.accumulation_steps for x in recipes]
    assert batches == sorted(batches)
    passes = [settings.passes for settings in chosen]
    assert passes[0] > 2 * passes[1] > 3 * passes[2] > 60
    assert [x.data.held_out.test for x in recipes] == [50, 1_500, 2_000, 2_000, 2_000, 2_000]
    for settings, recipe, pairs in zip(chosen, recipes, sizes, strict=True):
        assert recipe.data.held_out.validation == recipe.data.held_out.test == settings.held_out
        assert recipe.training.steps == settings.steps == 20 * recipe.training.checkpoint_every
        assert recipe.training.warmup_steps <= settings.steps / 4
        assert 9 * pairs <= settings.tokens < 60 * pairs  # 8 words, of one or more pieces, and eos
        assert recipe.tokenizer.vocabulary_size == settings.vocabulary_size


@pytest.mark.parametrize(
    ("pairs", "name"), [(29_000, "multi30k_en_de_raw"), (166_000, "tatoeba_en_de")]
)
def test_settings_are_those_of_the_recipe_of_that_size(report, tmp_path, pairs, name):
    recipe = written(choose_settings(of_size(report, pairs)), tmp_path)
    known = load_recipe(name)
    assert recipe.model == known.model
    for setting in ("tokens_per_batch", "warmup_steps", "peak_learning_rate", "length_multiple"):
        assert getattr(recipe.training, setting) == getattr(known.training, setting)


def test_vocabulary_fits_the_training_split_of_repetitive_text(tmp_path):
    digits = "zero one two three four five six seven eight nine".split()
    ziffern = "null eins zwei drei vier fünf sechs sieben acht neun".split()
    sides = [map(" ".join, itertools.product(names, repeat=3)) for names in (digits, ziffern)]
    pairs = list(zip(*sides, strict=True))
    settings = choose_settings(examine(pairs))
    assert settings.vocabulary_size < 200
    held_out = hold_out(pairs, settings.held_out, settings.held_out)
    size = settings.vocabulary_size
    assert Tokenizer.train(list(held_out.train()), size).source_vocabulary_size == size


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("", "300 of 300 target sentences (100.00%) come back unchanged"),
        ("  two  spaces ", "; others lose only repeated or outer spaces, which BLEU ignores"),
        (" a \u2581 \0.", "; others lose characters: remove U+0000, U+2581 from the text"),
    ],
)
def test_target_sentences_that_do_not_come_back_are_counted(end, said, tmp_path):
    pairs = [(x, y if n % 10 else y + end) for n, (x, y) in enumerate(corpus(400))]
    settings = choose_settings(examine(pairs))
    assert settings.round_trip.endswith(said)
    assert written(settings, tmp_path).tokenizer.target_normalization == "identity"
    assert f"  # {settings.round_trip}\n" in (tmp_path / "recipe.yaml").read_text()


@pytest.mark.parametrize("pairs", [[], corpus(199), corpus(199) * 2])
def test_too_few_different_sentences_are_refused(pairs):
    with pytest.raises(UserError, match=f"at least 200 pairs .* Received: {len(pairs)} pairs"):
        choose_settings(examine(pairs))


def test_names_and_languages_of_all_kinds_survive_yaml(report, tmp_path):
    source, target = tmp_path / "no: #1 '\"\t☃.no", tmp_path / "sub" / "x\x85.zh"
    settings = choose_settings(report)
    data = written(settings, tmp_path, Text(source, target, "no", "zh")).data
    assert (data.source_language, data.target_language) == ("no", "zh")
    assert data.directory / data.train.source == source
    assert data.directory / data.train.target == target
    assert data.directory == tmp_path
