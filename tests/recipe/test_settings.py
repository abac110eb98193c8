"""Which values the keys of a recipe may have."""

import json

import pytest
from pydantic import ValidationError

from keras_transformer.errors import UserError
from keras_transformer.models import ARCHITECTURES
from keras_transformer.recipe.files import load_recipe
from keras_transformer.recipe.settings import ModelSettings, Recipe, known_keys, may_change


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


def test_differences_have_key_and_both_values(path):
    one = load_recipe(path, ["training.initial_run=here"])
    other = load_recipe(path, ["training.initial_run=there", "training.steps=8"])
    expected = {"training.initial_run": ("here", "there"), "training.steps": (7, 8)}
    assert one.differences(other) == expected
    assert one.differences(one) == {}


def test_a_resumed_run_may_change_only_what_keeps_the_steps_that_are_done():
    changeable = {key for key in known_keys() if may_change(key)}
    training = "checkpoint_every distribution early_stopping_patience gradient_checkpointing "
    training += "jit_compile keep_checkpoints logits_mebibytes model_shards steps "
    training += "validation_bleu_sentences"
    expected = {"data.directory", "description", *(f"training.{x}" for x in training.split())}
    assert {key for key in changeable if not key.startswith("evaluation")} == expected
    assert {"evaluation", "evaluation.average_last", "evaluation.beam_size"} <= changeable
    assert not may_change("data.train.source") and not may_change("data.download.sha256.a.gz")


@pytest.mark.parametrize(
    "data",
    [
        "{}",
        "{train: {source: a}}",
        "{generator: {}, train: {source: a, target: b}}",
        "{generator: {}, train: {source: a}, held_out: {}}",
    ],
)
def test_data_is_files_or_a_generator(path, data):
    path.write_text(f"name: minimal\ndata: {data}\n")
    with pytest.raises(UserError, match="data: give "):
        load_recipe(path)


@pytest.mark.parametrize("key", ["directory: folder", "download: {url: 'http://a', sha256: {}}"])
def test_generated_text_needs_no_files(path, key):
    path.write_text(f"name: minimal\ndata: {{generator: {{}}, {key}}}\n")
    with pytest.raises(UserError, match="data: directory and download have no effect with a gen"):
        load_recipe(path)


@pytest.mark.parametrize(
    "data", ["{held_out: {}}", "{train: {source: a}, test: {source: b}, held_out: {}}"]
)
def test_held_out_pairs_come_from_the_training_text(path, data):
    path.write_text(f"name: minimal\ndata: {data}\n")
    with pytest.raises(UserError, match="data: held_out needs files for train, and no validation"):
        load_recipe(path)


@pytest.mark.parametrize(
    "settings", [["model.attention_pattern=local"], ["model.attention_window=64"]]
)
def test_windows_belong_to_patterns(path, settings):
    with pytest.raises(
        UserError, match="model: attention_window is required for .* local, strided or"
    ):
        load_recipe(path, settings)


def test_an_unknown_architecture_is_refused(path):
    assert load_recipe(path).model.architecture == "transformer"
    description = ModelSettings.model_fields["architecture"].description
    assert description == f"One of {', '.join(ARCHITECTURES)}."
    with pytest.raises(UserError, match="must be one of transformer, recurrent, .*'rnn'"):
        load_recipe(path, ["model.architecture=rnn"])


def test_keys_of_another_architecture_are_refused_by_name(path):
    settings = ["model.architecture=convolutional", "model.preset=tiny"]
    model = load_recipe(path, [*settings, "model.kernel_size=5"]).model
    assert (model.sizes["kernel_size"], model.sizes["d_embedding"]) == (5, 256)
    with pytest.raises(UserError, match="model: the architecture convolutional has only the keys "):
        load_recipe(path, [*settings, "model.num_heads=4"])
    with pytest.raises(UserError, match="only the keys .* num_layers.* Received: kernel_size"):
        load_recipe(path, ["model.kernel_size=5"])
    with pytest.raises(UserError, match="has the presets tiny, base. Received: preset=big"):
        load_recipe(path, ["model.architecture=recurrent", "model.preset=big"])


def test_the_old_name_of_gradient_checkpointing_is_read(path):
    assert load_recipe(path, ["training.recomputation=true"]).training.gradient_checkpointing


def test_patterns_reach_the_model(path):
    settings = ["model.attention_pattern=strided", "model.attention_window=64"]
    expected = {"attention_pattern": "strided", "attention_window": 64}
    assert load_recipe(path, settings).model.overrides == expected


def test_averaging_more_checkpoints_than_are_kept_is_refused(path):
    with pytest.raises(UserError, match="Received: keep_checkpoints=5, average_last=6"):
        load_recipe(path, ["evaluation.average_last=6"])


def test_a_recipe_cannot_be_changed(path):
    with pytest.raises(ValidationError, match="frozen"):
        load_recipe(path).training.steps = 3


def test_known_keys_reach_into_optional_sections():
    keys = list(known_keys())
    assert {"data.train.source", "data.generator.test", "training.steps"} <= set(keys)
    assert keys[0] == "name" and "data" in Recipe.model_fields


def load_download(path, url="https://example.org/data", sha256=None):
    files = {split: {"source": "a.tsv"} for split in ("train", "validation", "test")}
    download = {"url": url, "sha256": {"a.tsv": "0" * 64} if sha256 is None else sha256}
    path.write_text(json.dumps({"name": "minimal", "data": {**files, "download": download}}))
    return load_recipe(path).data.download


@pytest.mark.parametrize("url", ["http://localhost:8000/a", "HTTPS://example.org"])
def test_downloads_come_by_http(path, url):
    assert load_download(path, url).url == url


@pytest.mark.parametrize(
    "url", ["file:///etc", "ftp://example.org", "example.org", "http:///a", ""]
)
def test_downloads_by_other_protocols_are_refused(path, url):
    with pytest.raises(UserError) as caught:
        load_download(path, url)
    rule = f"data.download.url: must begin with http:// or https://. Received: {url!r}"
    assert str(caught.value) == f"{path}: {rule}"


def test_hashes_are_lower_case(path):
    assert load_download(path, sha256={"a.tsv": "AB" * 32}).sha256 == {"a.tsv": "ab" * 32}


@pytest.mark.parametrize(
    "digest", ["../../.ssh", "", "0" * 63, "0" * 65, "g" * 64, "0" * 64 + "\n"]
)
def test_a_hash_is_64_hex_digits(path, digest):
    with pytest.raises(UserError) as caught:
        load_download(path, sha256={"a.tsv": digest})
    assert f"a.tsv must have 64 hex digits. Received: {digest!r}" in str(caught.value)


@pytest.mark.parametrize(
    "name", ["../a", "/a", "a/b", "a\\b", ".", "..", ".bashrc", "", "\0", "a" * 201]
)
def test_a_downloaded_file_has_a_plain_name(path, name):
    with pytest.raises(UserError, match="a file name must have no folder") as caught:
        load_download(path, sha256={name: "0" * 64})
    assert str(caught.value).endswith(f"Received: {name!r}")


@pytest.mark.parametrize("name", ["..", ".", ".ssh"])
def test_the_run_folder_is_not_hidden_and_not_its_parent(path, name):
    path.write_text(path.read_text().replace("name: minimal", f"name: {name}"))
    with pytest.raises(UserError, match="name: String should match pattern"):
        load_recipe(path)


def test_a_recipe_is_written_without_aliases(path):
    shared = {"source": "a.tsv"}
    data = {"train": shared, "validation": shared, "test": shared}
    path.write_text(Recipe.model_validate({"name": "a", "data": data}).to_yaml())
    assert load_recipe(path).data.train == load_recipe(path).data.test


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


@pytest.mark.parametrize(
    ("setting", "received"),
    [
        ("training.peak_learning_rate=1.0e+300", r"1e\+300 times 1"),
        ("training.learning_rate_scale=1.0e+300", r"0.000698771 times 1e\+300"),
    ],
)
def test_an_absurd_learning_rate_is_refused(path, setting, received):
    with pytest.raises(UserError, match=f"learning_rate_scale must be at most 10. .*{received}$"):
        load_recipe(path, [setting])


@pytest.mark.parametrize("setting", ["model.num_heads=7", "model.d_model=500"])
def test_heads_divide_the_width_also_if_the_preset_gives_one(path, setting):
    with pytest.raises(UserError, match="model: num_heads must divide d_model"):
        load_recipe(path, [setting])


def test_a_generator_needs_two_languages(path):
    with pytest.raises(UserError, match="data: target_language must differ from source_language"):
        load_recipe(path, ["data.target_language=en"])


def test_held_out_text_needs_two_languages_that_can_be_suffixes(path):
    held_out = ["data={train: {source: a}, held_out: {}}"]
    with pytest.raises(UserError, match="data: target_language must differ from source_language"):
        load_recipe(path, [*held_out, "data.target_language=en"])
    for language in ("../de", "d\x1b", ""):
        with pytest.raises(UserError, match="data.target_language: String should match pattern"):
            load_recipe(path, [*held_out, f"data.target_language={json.dumps(language)}"])


def test_settings_of_the_model_reach_it(path):
    expected = {"num_decoder_layers": 2, "attention_dropout_rate": 0.1, "norm_epsilon": 1e-5}
    settings = [f"model.{name}={value:f}" for name, value in expected.items() if value < 2]
    recipe = load_recipe(path, [*settings, "model.num_decoder_layers=2"])
    assert recipe.model.overrides == expected
