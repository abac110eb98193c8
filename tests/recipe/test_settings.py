"""Which values the keys of a recipe may have."""

import json

import pytest
from pydantic import ValidationError

from keras_transformer.errors import UserError
from keras_transformer.models import ARCHITECTURES, Seq2Seq, register_architecture
from keras_transformer.recipe.files import load_recipe
from keras_transformer.recipe.schema import all_keys
from keras_transformer.recipe.settings import Recipe, may_change


def test_defaults_are_the_papers(path):
    recipe = load_recipe(path)
    assert recipe.model.preset == "base"
    assert recipe.model.overrides == {}
    training, evaluation = recipe.training, recipe.evaluation
    assert (training.adam_beta_1, training.adam_beta_2, training.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert (training.warmup_steps, training.label_smoothing) == (4000, 0.1)
    assert (evaluation.beam_size, evaluation.length_penalty) == (4, 0.6)


def test_yaml_round_trip_keeps_every_value(path, tmp_path):
    recipe = load_recipe(path, ["training.peak_learning_rate=0.001", "training.initial_run=ü"])
    written = tmp_path / "written.yaml"
    written.write_text(recipe.to_yaml(), encoding="utf-8")
    assert load_recipe(written) == recipe


def test_a_recipe_is_written_without_aliases(path):
    shared = {"source": "a.tsv"}
    data = {"train": shared, "validation": shared, "test": shared}
    path.write_text(Recipe.model_validate({"name": "a", "data": data}).to_yaml())
    assert load_recipe(path).data.train == load_recipe(path).data.test


def test_a_recipe_cannot_be_changed(path):
    with pytest.raises(ValidationError, match="frozen"):
        load_recipe(path).training.steps = 3


def test_differences_have_key_and_both_values(path):
    one = load_recipe(path, ["training.initial_run=here"])
    other = load_recipe(path, ["training.initial_run=there", "training.steps=8"])
    expected = {"training.initial_run": ("here", "there"), "training.steps": (7, 8)}
    assert one.differences(other) == expected
    assert one.differences(one) == {}


def test_a_resumed_run_may_change_only_what_keeps_the_steps_that_are_done():
    changeable = {key.name for key in all_keys() if key.may_change}
    training = "checkpoint_every distribution early_stopping_patience gradient_checkpointing "
    training += "jit_compile keep_checkpoints logits_mebibytes model_shards steps "
    training += "validation_bleu_sentences"
    expected = {"data.directory", "description", *(f"training.{x}" for x in training.split())}
    assert {key for key in changeable if not key.startswith("evaluation")} == expected
    assert {"evaluation", "evaluation.average_last", "evaluation.beam_size"} <= changeable
    assert not may_change("data.train.source") and not may_change("data.download.sha256.a.gz")


def test_settings_of_the_model_reach_it(path):
    expected = {
        "num_decoder_layers": 2,
        "attention_dropout_rate": 0.1,
        "norm_epsilon": 1e-5,
        "attention_pattern": "strided",
        "attention_window": 64,
    }
    settings = [f"model.{name}={json.dumps(value)}" for name, value in expected.items()]
    settings[2] = "model.norm_epsilon=1.0e-5"  # a YAML number
    assert load_recipe(path, settings).model.overrides == expected


@pytest.fixture
def own_architecture():
    class Own(Seq2Seq):
        def __init__(self, vocabulary_size, d_model: int = 8, kernel_size: int = 3, **kwargs):
            raise NotImplementedError

    register_architecture("own", presets={"base": {"d_model": 4}, "wide": {"d_model": 6}})(Own)
    yield
    del ARCHITECTURES["own"]


def test_a_registered_architecture_has_the_settings_of_its_constructor(own_architecture, path):
    settings = ["model.architecture=own", "model.preset=wide", "model.kernel_size=5"]
    recipe = load_recipe(path, settings)
    assert recipe.model.sizes == {"d_model": 6, "kernel_size": 5}
    path.write_text(recipe.to_yaml())
    assert load_recipe(path) == recipe
    assert load_recipe(path, ["model.kernel_size=4"]).differences(recipe) == {
        "model.kernel_size": (4, 5)
    }


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("kernel_size=a", "model: kernel_size must have the type int. Received: kernel_size='a'"),
        ("num_heads=2", "own has only the keys d_model, kernel_size. Received: num_heads"),
        ("width=2", "own has only the keys d_model, kernel_size. Received: width"),
        ("preset=big", "presets base, wide. Received: preset=big"),
    ],
)
def test_other_settings_of_a_registered_architecture_are_refused(
    own_architecture, path, setting, message
):
    with pytest.raises(UserError, match=message):
        load_recipe(path, ["model.architecture=own", f"model.{setting}"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("model.architecture=rnn", "one of transformer.* A program must register .*'rnn'"),
        ("model.kernel_size=5", "only the keys .* num_layers.* Received: kernel_size"),
        ("model.preset=huge", "presets tiny, base, big. Received: preset="),
        ("model.attention_pattern=local", "attention_window is required for .* local, strided or"),
        ("model.attention_window=64", "attention_window is required for .* local, strided or"),
        ("model.num_heads=7", "model: num_heads must divide d_model"),
        ("model.d_model=500", "model: num_heads must divide d_model"),
        ("evaluation.average_last=6", "Received: keep_checkpoints=5, average_last=6"),
        ("training.peak_learning_rate=1.0e+300", r"at most 10. .* 1e\+300 times 1$"),
        ("training.learning_rate_scale=1.0e+300", r"at most 10. .* 0.000698771 times 1e\+300$"),
        ("data.target_language=en", "data: target_language must differ from source_language"),
        ("data.directory=a", "data: directory and download have no effect with a generator"),
        ("data.train={source: a}", "data: give files or a generator, not both"),
        ("data={}", "data: give files for train, validation and test, or"),
        ("data={train: {source: a}}", "data: give files for train, validation and test, or"),
        ("data={held_out: {}}", "data: held_out needs files for train, and no validation"),
        ("data={train: {source: a}, test: {source: b}, held_out: {}}", "held_out needs files"),
        ("name=..", "name: String should match pattern"),
        ("name=.ssh", "name: String should match pattern"),
        ("data.target_language=../de", "data.target_language: String should match pattern"),
        ('data.target_language="d\\x1b"', "data.target_language: String should match pattern"),
    ],
)
def test_settings_that_do_not_fit_are_refused(path, settings, message):
    settings = [settings] if "{" in settings else settings.split()
    with pytest.raises(UserError, match=message):
        load_recipe(path, settings)


@pytest.mark.parametrize(
    "setting",
    [
        "training.steps=100000000",
        "training.tokens_per_batch=2147483648",
        "model.d_model=9223372036854775808",
        "model.num_decoder_layers=1001",
        "data.max_length=1048577",
        "data.generator.train=2147483648",
        "tokenizer.vocabulary_size=1e999",
        "training.adam_epsilon=1.0e+300",
        "model.norm_epsilon=0",
        "model.attention_dropout_rate=1",
    ],
)
def test_numbers_out_of_range_are_refused_by_key(path, setting):
    with pytest.raises(UserError, match=f"{setting.partition('=')[0]}: Input should be"):
        load_recipe(path, [setting])


def load_download(path, url="https://example.org/data", name="a.tsv", digest="AB" * 32):
    files = {split: {"source": "a.tsv"} for split in ("train", "validation", "test")}
    download = {"url": url, "sha256": {name: digest}}
    path.write_text(json.dumps({"name": "minimal", "data": {**files, "download": download}}))
    return load_recipe(path).data.download


@pytest.mark.parametrize("url", ["http://localhost:8000/a", "HTTPS://example.org"])
@pytest.mark.parametrize("name", ["train.lc.norm.tok.en", "a b", "größe_1-2.gz", "x" * 200, "a..b"])
def test_downloads_come_by_http_with_plain_names_and_hashes_in_lower_case(path, url, name):
    found = load_download(path, url, name)
    assert (found.url, found.sha256) == (url, {name: "ab" * 32})


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("url", ["file:///etc", "ftp://example.org", "example.org", "http:///a", ""]),
        ("digest", ["../../.ssh", "", "0" * 63, "0" * 65, "g" * 64, "0" * 64 + "\n"]),
        ("name", ["../a", "/a", "a/b", "a\\b", "C:a", ".", "..", ".ssh", "", "\0", "a" * 201]),
    ],
)
def test_other_downloads_are_refused(path, key, values):
    for value in values:
        with pytest.raises(UserError, match="data.download.*: String should match pattern"):
            load_download(path, **{key: value})
