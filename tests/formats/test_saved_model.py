"""The export as a whole; what its signatures give is in test_translation_graph.py."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest
import yaml
from support.command_line import run_python
from support.contract import randomize
from support.small_models import small_model

from keras_transformer.data import Tokenizer
from keras_transformer.errors import UserError
from keras_transformer.formats import ExportOptions, export_run, export_saved_model
from keras_transformer.formats.saved_model import check_name, write_serving_files
from keras_transformer.models import Transformer
from keras_transformer.runs.run import Run

SIZES_OF_MODEL = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 4, "max_length": 24}


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
    files = {"1", "batching_parameters.txt", "docker-compose.yml", "models.config"}
    assert {path.name for path in version.parent.iterdir()} == files


@pytest.mark.slow
def test_plain_tensorflow_translates_with_it_as_the_page_says(exporting):
    page = Path(__file__).parents[2] / "docs" / "how-to" / "export-saved-model.md"
    *_, program = re.findall(r"^```py\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
    program = program.replace("exports/quickstart/1", str(exporting.folder / "model" / "1"))
    check = 'import sys; assert "keras_transformer" not in sys.modules'
    assert run_python(f"{program}\n{check}").startswith("['")


@pytest.mark.slow
def test_two_vocabularies_mixed_precision_prefixes_a_minimum_and_a_shortlist_are_exported(
    exporting,
):
    other = exporting.other
    assert other["comparison"].startswith("100.0% of 6 translations equal the model's")
    assert other["found"] == other["expected"]
    assert any(text.isupper() for text in other["found"][0])
    assert other["found"][0] != other["found"][1]
    np.testing.assert_allclose(other["logits"], other["expected logits"], atol=1e-5)
    np.testing.assert_allclose(other["scored"], other["expected scores"], rtol=1e-5)


def test_a_model_that_translates_otherwise_leaves_nothing(exporting):
    """A version 2 that the process tried to write with other translations than the model's."""
    failing = exporting.answers["failing"]
    assert failing["error"].startswith("the SavedModel translates 'a' to 'nonsense' with")
    assert "2" not in failing["left"]
    assert not [name for name in failing["left"] if name.startswith(".partial")]


def test_it_is_written_on_tensorflow_alone(exporting, tmp_path):
    """On TensorFlow the same call complains of the tokenizer, which is another model's."""
    tokenizer = Tokenizer.load(exporting.folder / "tokenizer")
    rule = "must be the model's tokenizer"
    if keras.config.backend() != "tensorflow":
        rule = "KERAS_BACKEND=tensorflow"
    with pytest.raises(ValueError, match=rule):
        export_saved_model(small_model(), tokenizer, tmp_path / "model")
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


def test_files_are_what_the_server_s_own_classes_read(exporting):
    served = exporting.answers["served"]
    if served is None:
        pytest.skip("tensorflow-serving-api is an optional dependency")
    assert served["models"] == [["model", "/models/model", "tensorflow"]]
    signatures = ["serving_default", "serving_default", "translate_nbest", "score"]
    assert served["warmup"] == [["model", signature] for signature in signatures]


def test_operations_that_a_stock_server_lacks_are_named(exporting):
    message = exporting.answers["lacking"]
    assert message.endswith("may not have: RoundRobinTrimmer, XlaDynamicUpdateSlice")


@pytest.mark.parametrize("name", ['a"b', "my run", "Übersetzer", "a\nb", ""])
def test_names_that_the_files_cannot_hold_are_refused(name):
    with pytest.raises(UserError, match="the name of a served model may only have letters"):
        check_name(name)


# The export compares itself with the model, and raises an error if they differ.


def exported(directory, model, **options):
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
    exported(run, Transformer(17, **SIZES_OF_MODEL), **options)


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
    exported(run, Transformer(17, **SIZES_OF_MODEL, **settings))
