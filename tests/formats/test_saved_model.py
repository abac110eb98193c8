"""The export as a whole; what its signatures give is in test_translation_graph.py."""

import re
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import yaml
from support.command_line import run_python
from support.contract import randomize, to_numpy
from support.exporting import PAIRS, SIZES
from support.small_models import small_model

from keras_transformer import Scorer, SearchOptions, Tokenizer, Translator, save_run
from keras_transformer.decoding.shortlist import Shortlist
from keras_transformer.errors import UserError
from keras_transformer.formats import ExportOptions, export_run, export_saved_model, saved_model
from keras_transformer.formats.saved_model import (
    check_name,
    check_operations,
    run_signatures,
    write_serving_files,
)
from keras_transformer.models import Transformer
from keras_transformer.models.base import in_float32
from keras_transformer.runs.run import Run

tf = pytest.importorskip("tensorflow", reason="TensorFlow is an optional dependency")

SIZES_OF_MODEL = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 4, "max_length": 24}


def test_the_first_version_appears_whole_and_compared(exported):
    version = exported.version
    assert version.name == "1"
    assert (version / "saved_model.pb").is_file()
    share, difference, needs = re.split("; their scores differ by at most |\n", exported.comparison)
    assert share == "100.0% of 16 translations equal the model's"
    assert float(difference.split(" nats")[0]) < 1e-4
    assert int(re.search(r"GraphDef version (\d+)", needs)[1]) > 0
    files = {"1", "batching_parameters.txt", "docker-compose.yml", "models.config"}
    assert {path.name for path in version.parent.iterdir()} == files


@pytest.mark.slow
def test_plain_tensorflow_translates_with_it_as_the_page_says(exported):
    page = Path(__file__).parents[2] / "docs" / "how-to" / "export-saved-model.md"
    *_, program = re.findall(r"^```py\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
    program = program.replace("exports/quickstart/1", str(exported.version))
    check = 'import sys; assert "keras_transformer" not in sys.modules'
    assert run_python(f"{program}\n{check}").startswith("['")


def shortlist_of(tokenizer):
    """The reversed word alone, of which nothing is frequent but the letters A and B."""
    sources = tokenizer.encode_source([source for source, _ in PAIRS])
    targets = tokenizer.encode_target([target for _, target in PAIRS])
    translations = np.full((tokenizer.source_vocabulary_size, 4), -1, "int32")
    for source, target in zip(sources, targets, strict=True):
        translations[source[0], : len(target[:4])] = target[:4]
    return Shortlist(np.array([5, 9], "int32"), translations, tokenizer.fingerprint)


@pytest.mark.slow
def test_two_vocabularies_mixed_precision_prefixes_a_minimum_and_a_shortlist_are_exported(tmp_path):
    """A smaller maximum length becomes the minimum."""
    plain = Tokenizer.train(PAIRS, 18, "unigram", joint=False, normalization="identity")
    frames = {"source_prefix": ["a", "b"], "target_prefix": ["D", "B"], "source_eos": False}
    tokenizer = Tokenizer(plain.source_model, plain.target_model, **frames)
    options, shortlist = SearchOptions(beam_size=2, min_length=6), shortlist_of(tokenizer)
    model = Transformer(
        18,
        target_vocabulary_size=18,
        **SIZES,
        position_encoding="sinusoidal_fairseq",
        tie_word_embeddings=False,
        use_logits_bias=True,
        dtype="mixed_bfloat16",
    )
    run = save_run(tmp_path / "run", randomize(model), tokenizer, options=options)
    model.save(run.model_path)
    shortlist.save(run.shortlist_path)
    settings = {"shortlist": True, "output": tmp_path / "model"}
    found = export_run(run, ExportOptions(format="saved_model", **settings))
    assert found.comparison.startswith("100.0% of 16 translations equal the model's")

    exact, texts = in_float32(model), ["a bad cab", "fed a deaf face", " dab", "zzz"]
    sources, targets = [[5, 6, 3]], [[2, 7]]
    best, least, scored, logits = run_signatures(
        found.directory,
        [
            ("serving_default", {"text": texts}),
            ("translate_nbest", {"text": texts, "max_length": [3]}),
            ("score", {"source": texts[:1], "target": ["A BAD CAB"]}),
            ("encode_tokens", {"source_ids": sources, "target_ids": targets}),
        ],
    )
    translators = [
        Translator(exact, tokenizer, each, shortlist=shortlist)
        for each in (options, options.replace(max_length=6))
    ]
    translations = [best["translation"], [row[0] for row in least["translations"]]]
    assert translations == [translator.translate(texts) for translator in translators]
    assert translations[0] != translations[1] and any(x.isupper() for x in translations[0])
    (expected,) = Scorer(exact, tokenizer).score(texts[:1], ["A BAD CAB"])
    found = [scored[name][0] for name in ("log_probability", "length")]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    inputs = {"source_ids": np.array(sources), "target_ids": np.array(targets)}
    np.testing.assert_allclose(logits["logits"], to_numpy(exact(inputs)), atol=1e-5)


def test_a_model_that_translates_otherwise_leaves_nothing(exported, tmp_path, monkeypatch):
    wrong = {"score": [0.5], "translation": ["nonsense"]}
    nbest = {"scores": [[0.5] * 4], "translations": [["nonsense"] * 4]}
    config = SimpleNamespace(backend=lambda: "tensorflow")
    monkeypatch.setattr(saved_model, "keras", SimpleNamespace(config=config))
    monkeypatch.setattr(saved_model, "run_signatures", lambda *_: [wrong, nbest])
    monkeypatch.setattr(saved_model, "_save", lambda _, version: version.mkdir() or 0)
    with pytest.raises(UserError, match="^the SavedModel translates 'a' to 'nonsense' with"):
        export_saved_model(exported.model, exported.tokenizer, tmp_path / "model", sentences=["a"])
    assert not any((tmp_path / "model").iterdir())


def test_it_is_written_on_tensorflow_alone(exported, tmp_path):
    """On TensorFlow the same call complains of the tokenizer, which is another model's."""
    rule = "must be the model's tokenizer"
    if keras.config.backend() != "tensorflow":
        rule = "KERAS_BACKEND=tensorflow"
    with pytest.raises(ValueError, match=rule):
        export_saved_model(small_model(), exported.tokenizer, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_server_is_told_where_the_model_lies_and_how_to_batch(tmp_path):
    (tmp_path / "models.config").write_text("# mine\n")
    write_serving_files(tmp_path, "quickstart")
    assert (tmp_path / "models.config").read_text() == "# mine\n"  # what was changed stays
    services = yaml.safe_load((tmp_path / "docker-compose.yml").read_text())["services"]
    service = services["quickstart"]
    assert service["volumes"] == [".:/models/quickstart:ro"]
    assert service["ports"] == ["8500:8500", "8501:8501"]
    files = [flag.split("=/models/quickstart/")[1] for flag in service["command"] if "=" in flag]
    assert files == ["models.config", "batching_parameters.txt"]
    assert all((tmp_path / file).is_file() for file in files)


def test_files_are_what_the_server_s_own_classes_read(exported):
    reason = "tensorflow-serving-api is an optional dependency"
    log_pb2 = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2", reason=reason)
    from google.protobuf import text_format
    from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

    config = (exported.version.parent / "models.config").read_text()
    (served,) = text_format.Parse(config, ModelServerConfig()).model_config_list.config
    place = served.name, served.base_path, served.model_platform
    assert place == ("model", "/models/model", "tensorflow")
    file = exported.version / "assets.extra" / "tf_serving_warmup_requests"
    logs = [log_pb2.PredictionLog.FromString(x.numpy()) for x in tf.data.TFRecordDataset(file)]
    found = [log.predict_log.request.model_spec for log in logs]
    signatures = ["serving_default", "serving_default", "translate_nbest", "score"]
    assert [(x.name, x.signature_name) for x in found] == [("model", x) for x in signatures]


def test_operations_that_a_stock_server_lacks_are_named():
    graph = tf.compat.v1.GraphDef()
    for name in ("XlaDynamicUpdateSlice", "MatMul", "SentencepieceOp", "body"):
        graph.node.add(op=name)
    function = graph.library.function.add()
    function.signature.name = "body"
    function.node_def.add(op="RoundRobinTrimmer")
    with pytest.raises(UserError, match="not have: RoundRobinTrimmer, XlaDynamicUpdateSlice$"):
        check_operations(graph)


@pytest.mark.parametrize("name", ['a"b', "my run", "Übersetzer", "a\nb", ""])
def test_names_that_the_files_cannot_hold_are_refused(name):
    with pytest.raises(UserError, match="the name of a served model may only have letters"):
        check_name(name)


# The export compares itself with the model, and raises an error if they differ.


def export(directory, model, **options):
    """The folder of the version that `export_run` writes."""
    run = Run.open(directory)
    randomize(model)
    model.save(run.model_path)
    search = run.recipe.evaluation.search_options(**options)
    return export_run(run, ExportOptions(format="saved_model", search=search)).directory


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"no_repeat_ngram_size": 2, "num_beam_groups": 2, "diversity_penalty": 0.5},
        {"coverage_penalty": 0.3, "repetition_penalty": 1.5, "min_length": 3},
        {"length_penalty_form": "power", "length_penalty": 1.0, "max_length": 7},
    ],
)
def test_every_search_option_is_exported(run, options):
    export(run, Transformer(17, **SIZES_OF_MODEL), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"attention_pattern": "full", "position_encoding": "rotary", "activation": "elu"},
        {"position_encoding": "t5", "norm_first": True, "activation": "softplus"},
        {"attention_pattern": "local", "attention_window": 3, "activation": "gelu"},
        {"position_encoding": "alibi", "activation": "mish"},
        {
            **{"normalization": "rms", "activation": "swiglu", "use_bias": False},
            **{"position_encoding": "rotary", "num_kv_heads": 1, "qk_norm": True},
        },
        {"activation": "geglu", "num_kv_heads": 1, "attention_soft_cap": 3.0},
        {"decoder_layer": "keras_transformer>SSRUDecoderLayer"},
    ],
)
def test_every_setting_of_the_transformer_is_exported(run, settings):
    export(run, Transformer(17, **SIZES_OF_MODEL, **settings))
