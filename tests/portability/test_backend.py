"""A process answers, reports errors, and its death is an error too."""

import keras
import numpy as np
import pytest

from keras_transformer.portability.backend import Backend, BackendError, measured


@pytest.fixture
def folder(tmp_path):
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)]).save(tmp_path / "model.keras")
    np.savez(tmp_path / "inputs.npz", **{"0": np.ones((1, 2), "float32")})
    (tmp_path / "inputs.json").write_text("0")
    return tmp_path


def test_a_process_answers_and_reports_errors_until_it_ends(folder):
    with Backend(keras.config.backend(), folder, [], seed=0) as backend:
        found = measured(backend.ask("outputs"))
        assert found.values["output 0"].shape == (1, 3)
        assert found.noise["output 0"].max() > 0 and found.terms == 2
        with pytest.raises(BackendError, match="No such file|not found"):
            backend.ask("load", path=str(folder / "nothing.keras"))
        backend._process.kill()
        with pytest.raises(BackendError, match="the process ended with status -9"):
            backend.ask("outputs")


def test_a_module_that_is_missing_is_an_error(folder):
    with Backend(keras.config.backend(), folder, ["no_such_module"], seed=0) as backend:
        with pytest.raises(BackendError, match="ModuleNotFoundError.*no_such_module"):
            backend.ask("outputs")
