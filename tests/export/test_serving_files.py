"""Operations and files of an export, read with the classes of TensorFlow Serving."""

from types import SimpleNamespace

import pytest
import yaml

from keras_transformer.errors import UserError
from keras_transformer.export.serving_files import (
    check_name,
    operations,
    write_serving_files,
)

pytestmark = pytest.mark.once


def test_a_server_is_told_where_the_model_lies_and_how_to_batch(tmp_path):
    write_serving_files(tmp_path, "quickstart")
    service = yaml.safe_load((tmp_path / "docker-compose.yml").read_text())["services"][
        "quickstart"
    ]
    assert service["volumes"] == [".:/models/quickstart:ro"]
    assert service["ports"] == ["8500:8500", "8501:8501"]
    files = [flag.split("=/models/quickstart/")[1] for flag in service["command"] if "=" in flag]
    assert files == ["models.config", "batching_parameters.txt"]
    assert all((tmp_path / file).is_file() for file in files)


def test_what_was_changed_stays(tmp_path):
    (tmp_path / "models.config").write_text("# mine\n")
    write_serving_files(tmp_path, "quickstart")
    assert (tmp_path / "models.config").read_text() == "# mine\n"
    assert (tmp_path / "batching_parameters.txt").is_file()


def test_files_are_what_the_server_s_own_classes_read(exporting):
    served = exporting.answers["served"]
    if served is None:
        pytest.skip("tensorflow-serving-api is an optional dependency")
    assert served["models"] == [["model", "/models/model", "tensorflow"]]
    names = [(request["model"], request["signature"]) for request in served["warmup"]]
    signatures = ["serving_default", "serving_default", "translate_nbest", "score"]
    assert names == [("model", signature) for signature in signatures]
    alone, together, nbest, score = (request["inputs"] for request in served["warmup"])
    assert alone["text"] == together["text"][:1]
    assert nbest == {
        "text": together["text"],
        **{name: [-1] * 6 for name in ("beam_size", "length_penalty", "max_length")},
    }
    assert score == {"source": together["text"], "target": together["text"]}


def function(name, *nodes):
    return SimpleNamespace(signature=SimpleNamespace(name=name), node_def=nodes)


def node(op):
    return SimpleNamespace(op=op)


def test_operations_of_functions_count_and_functions_are_none():
    library = SimpleNamespace(function=[function("body", node("Tile"), node("Cast"))])
    graph = SimpleNamespace(node=[node("While"), node("body"), node("Cast")], library=library)
    assert operations(graph) == ["Cast", "Tile", "While"]


def test_operations_that_a_stock_server_lacks_are_named(exporting):
    message = exporting.answers["lacking"]
    assert message.endswith("may not have: RoundRobinTrimmer, XlaDynamicUpdateSlice")


@pytest.mark.parametrize("name", ['a"b', "my run", "Übersetzer", "a\nb", ""])
def test_names_that_the_files_cannot_hold_are_refused(name):
    with pytest.raises(UserError, match="the name of a served model may only have letters"):
        check_name(name)
