"""`keras-transformer conformance`; tests/portability runs it on a run."""

import keras
import pytest
from support.command_line import fails, invoke

from keras_transformer import portability
from keras_transformer.portability.comparison import ArrayDifference


@pytest.mark.parametrize("conforms", [True, False])
def test_status_says_whether_a_model_file_conforms(conforms, monkeypatch, tmp_path):
    path = tmp_path / "model.keras"
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)]).save(path)
    difference = ArrayDifference("output 0", 1.0, 2.0 if conforms else 0.5)
    failures = [] if conforms else ["outputs: jax and torch differ in model/dense"]

    def conformance(model, *, imports):
        assert model.output_shape == (None, 3) and imports == ("support.custom_layers",)
        return portability.Conformance(
            {"outputs": {("jax", "torch"): difference}}, failures, notes=[]
        )

    monkeypatch.setattr(portability, "conformance", conformance)
    result = invoke("conformance", path, "--import", "support.custom_layers")
    assert result.exit_code == (0 if conforms else 1), result.output
    assert (" !" in result.stdout) != conforms
    assert all(text in result.stdout for text in failures)


def test_what_is_no_run_no_module_and_no_functional_model_is_refused(tmp_path):
    assert "no run folder" in fails("conformance", tmp_path)
    assert "no_such_module" in fails("conformance", tmp_path, "--import", "no_such_module")
    path = tmp_path / "model.keras"
    keras.Sequential([keras.layers.Dense(3)]).save(path)
    assert "a model that is not functional" in fails("conformance", path)
