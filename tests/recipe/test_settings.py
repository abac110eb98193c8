"""Which values the keys of a recipe may have, and the keys in words."""

import pytest
import support.older_models  # noqa: F401  registers the convolutional architecture
from pydantic import ValidationError

from keras_transformer.errors import UserError
from keras_transformer.models import ARCHITECTURES
from keras_transformer.recipe.files import load_recipe
from keras_transformer.recipe.sections import Download
from keras_transformer.recipe.settings import Recipe, all_keys

KEYS = {key.name: key for key in all_keys()}


def test_defaults_are_the_papers_and_cannot_be_changed(path):
    recipe = load_recipe(path)
    assert (recipe.model.preset, recipe.model.overrides) == ("base", {})
    training, evaluation = recipe.training, recipe.evaluation
    assert (training.adam_beta_1, training.adam_beta_2, training.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert (training.warmup_steps, training.label_smoothing) == (4000, 0.1)
    assert (evaluation.beam_size, evaluation.length_penalty) == (4, 0.6)
    with pytest.raises(ValidationError, match="frozen"):
        training.steps = 3


TOKENIZATIONS = {
    "zh": "zh zho zh-CN zh_TW zh-Hans zho_Hant ZH chi cmn yue zh-yue wuu nan lzh zh-Hant-HK zh-cmn "
    "i-hak und-Hans",
    "char": "ja ja-JP jpn jpn_Jpan jpn_Hani th th-TH tha km-KH khm my-MM mya bur lo lao shn bo "
    "dz zh-Bopo jv-Java ban_Bali",
    "13a": "en deu pt-BR ko kor fa vi zh-Latn ja-Latn km-Latn xx tlh",
}


@pytest.mark.parametrize("tokenize", TOKENIZATIONS)
def test_the_tokenization_of_bleu_follows_the_script_of_the_target_language(tokenize, path):
    for code in TOKENIZATIONS[tokenize].split():
        recipe = load_recipe(path, [f"data.target_language={code}", "data.source_language=it"])
        assert (code, recipe.bleu_settings) == (code, {"tokenize": tokenize, "lowercase": False})
    given = load_recipe(path, ["evaluation.tokenize=intl", "evaluation.lowercase=true"])
    assert given.bleu_settings == {"tokenize": "intl", "lowercase": True}


def test_yaml_round_trip_keeps_every_value_without_aliases(path, tmp_path):
    recipe = load_recipe(path, ["training.peak_learning_rate=0.001", "training.initial_run=ü"])
    written = tmp_path / "written.yaml"
    written.write_text(recipe.to_yaml(), encoding="utf-8")
    assert load_recipe(written) == recipe
    shared = {"source": "a.tsv"}
    data = {"train": shared, "validation": shared, "test": shared}
    path.write_text(Recipe.model_validate({"name": "a", "data": data}).to_yaml())
    assert load_recipe(path).data.validation == load_recipe(path).data.test


def test_differences_have_key_and_both_values(path):
    one = load_recipe(path, ["training.initial_run=here"])
    other = load_recipe(path, ["training.initial_run=there", "training.steps=8"])
    expected = {"training.initial_run": ("here", "there"), "training.steps": (7, 8)}
    assert one.differences(other) == expected
    assert one.differences(one) == {}


LIST = "data={train: [{source: a, tag: <a>}, {source: b, weight: 2}], validation: {source: v}, "
LIST += "test: {source: t}}"


def test_training_text_may_be_a_list_of_corpora(path):
    recipe = load_recipe(path, [LIST])
    assert [(x.source, x.tag, x.weight) for x in recipe.data.train] == [
        ("a", "<a>", 1),
        ("b", None, 2),
    ]
    assert recipe.data.corpora("train") == recipe.data.train
    path.write_text(recipe.to_yaml())
    assert load_recipe(path) == recipe
    other = load_recipe(path, ["data.train.1.weight=0.5", "data.train.0.tag=news"])
    expected = {"data.train.0.tag": ("<a>", "news"), "data.train.1.weight": (2, 0.5)}
    assert recipe.differences(other) == expected
    assert load_recipe(path, ["data.train={source: c}"]).data.train.source == "c"


def test_a_resumed_run_may_change_only_what_keeps_the_steps_that_are_done():
    changeable = {key.name for key in KEYS.values() if key.may_change}
    training = "checkpoint_every distribution early_stopping_patience gradient_checkpointing "
    training += "jit_compile keep_checkpoints logits_mebibytes model_shards steps "
    training += "validation_bleu_sentences"
    expected = {"data.directory", "description", *(f"training.{x}" for x in training.split())}
    assert {key for key in changeable if not key.startswith("evaluation")} == expected
    assert {"evaluation", "evaluation.average_last", "evaluation.beam_size"} <= changeable


def test_every_key_has_a_meaning_on_one_line():
    assert {"data.train.source", "data.generator.test", "training.steps"} <= KEYS.keys()
    assert all(key.meaning and key.value and "\n" not in key.meaning for key in KEYS.values())
    schema = Recipe.model_json_schema()
    keys = [key for part in schema["$defs"].values() for key in part["properties"].values()]
    assert not any("\n" in key.get("description", "") for key in keys)


def test_a_registered_architecture_has_the_settings_of_its_constructor(path):
    model = ["model.architecture=convolutional", "model.preset=tiny"]
    recipe = load_recipe(path, [*model, "model.kernel_size=5"])
    presets = ARCHITECTURES["convolutional"].presets
    assert recipe.model.sizes == {**presets["tiny"], "kernel_size": 5}
    path.write_text(recipe.to_yaml())
    assert load_recipe(path) == recipe
    other = load_recipe(path, ["model.kernel_size=4"])
    assert other.differences(recipe) == {"model.kernel_size": (4, 5)}
    for setting in ("num_heads=2", "width=2"):
        with pytest.raises(UserError, match="only the keys .* kernel_size.* Received"):
            load_recipe(path, [*model, f"model.{setting}"])


FILE = "data.train={source: a}"


BY_A_RUN = "translated_by: runs/a}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["model.architecture=rnn"],
            "one of language_model, transformer.* A program registers .*'rnn'",
        ),
        (["model.kernel_size=5"], "only the keys .* num_layers.* Received: kernel_size"),
        (["model.preset=huge"], "presets tiny, base, big. Received: preset="),
        (["evaluation.average_last=6"], "at least evaluation.average_last. Received: 5 and 6"),
        (["data.target_language=en"], "data: target_language must differ from source_language"),
        (["data.directory=a"], "data: directory, download and filters have no effect with"),
        ([FILE], "data: give files for train, .* Received: generator, train"),
        ([LIST, "data.train.1.wait=2"], "unknown key data.train.1.wait; .* data.train.weight"),
        ([LIST, "data.train.2.weight=2"], "data.train.2 is not a section, or the number"),
        (
            [LIST, "data.train.weight=2"],
            "data.train is not a section, or the number of one in a list. Rec",
        ),
        (
            ["data={train: [{source: a}, {source: b}], held_out: {}}"],
            "held_out needs one corpus in train, without translated_by. Received: 2, made by",
        ),
        (["data={}"], "data: give files for train, .* Received: none of them"),
        (["data={held_out: {}}", FILE, "data.test={source: b}"], ".* held_out, test, train"),
        (["data={train: {target: a}, held_out: {}}"], "data.train: give source, and target unless"),
        (["data={train: {source: a, sampled: true}, held_out: {}}"], "data.train: give source"),
        ([f"data={{train: {{{BY_A_RUN}, held_out: {{}}}}"], "data.train: give source, and"),
        (
            [f"data={{train: {{source: a, {BY_A_RUN}, held_out: {{}}}}"],
            "without translated_by. Received: 1, made by models: 1",
        ),
        (["data.target_language=../de"], "data.target_language: '../de' is not a language code"),
        (["name=.."], "name: String should match pattern"),
        (["training.subword_regularization=0.2"], "tokenizer.model_type: unigram. Received: bpe"),
        (["training.optimizer=adamw"], "adamw needs training.weight_decay above 0. Received"),
        (
            ["training.text_noise=0.1", "training.steps=9"],
            "needs more training.steps than training",
        ),
        (
            ["training.optimizer=schedule_free", "training.ema_momentum=0.9"],
            "schedule_free has a mean of its own.*Received: ema_momentum=0.9",
        ),
        (["tokenizer.vocabulary_size=1e999"], "tokenizer.vocabulary_size: Input should be"),
    ],
)
def test_settings_that_do_not_fit_are_refused(path, settings, message):
    with pytest.raises(UserError, match=message):
        load_recipe(path, settings)


def download(url="https://example.org/data", name="a.tsv", digest="AB" * 32):
    return Download(url=url, sha256={name: digest})


def test_downloads_come_by_http_with_plain_names_and_hashes_in_lower_case():
    for url in ("http://localhost:8000/a", "HTTPS://example.org"):
        for name in ("train.lc.norm.tok.en", "a b", "größe_1-2.gz", "x" * 200, "a..b"):
            found = download(url, name)
            assert (found.url, found.sha256) == (url, {name: "ab" * 32})


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("url", ["file:///etc", "ftp://example.org", "example.org", "http:///a", ""]),
        ("digest", ["../../.ssh", "", "0" * 63, "0" * 65, "g" * 64, "0" * 64 + "\n"]),
        ("name", ["../a", "/a", "a/b", "a\\b", "C:a", ".", "..", ".ssh", "", "\0", "a" * 201]),
    ],
)
def test_other_downloads_are_refused(key, values):
    for value in values:
        with pytest.raises(ValidationError, match="String should match pattern"):
            download(**{key: value})
