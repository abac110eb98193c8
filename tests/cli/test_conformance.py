"""`keras-transformer conformance`; tests/portability runs it on a run."""

import keras
import pytest
from support.command_line import fails, invoke

from keras_transformer import portability
from keras_transformer.portability.comparison import ArrayDifference, Failure


@pytest.mark.parametrize("conforms", [True, False])
def test_status_says_whether_a_model_file_conforms(conforms, monkeypatch, tmp_path):
    path = tmp_path / "model.keras"
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)]).save(path)
    difference = ArrayDifference("output 0", 1.0, 2.0 if conforms else 0.5)
    pair = ("jax", "torch")
    failures = [] if conforms else [Failure("outputs", pair, "model/dense", "1 of 0.5", None)]

    def conformance(model, *, imports, directory, report):
        assert model.output_shape == (None, 3)
        assert (imports, directory) == (("support.custom_layers",), tmp_path / "scripts")
        report(1)
        return portability.Conformance(
            [*pair], [], {"outputs": {pair: difference}}, failures, 4, True
        )

    monkeypatch.setattr(portability, "conformance", conformance)
    options = ("--import", "support.custom_layers", "--output", tmp_path / "scripts")
    result = invoke("conformance", path, *options)
    assert result.exit_code == (0 if conforms else 1), result.output
    assert (" !" in result.stdout) != conforms
    assert ("outputs: jax and torch differ in model/dense" in result.stdout) != conforms


def test_what_is_no_run_no_module_and_no_functional_model_is_refused(tmp_path):
    assert "no run folder" in fails("conformance", tmp_path)
    assert "no_such_module" in fails("conformance", tmp_path, "--import", "no_such_module")
    path = tmp_path / "model.keras"
    keras.Sequential([keras.layers.Dense(3)]).save(path)
    assert "is not a functional model" in fails("conformance", path)
