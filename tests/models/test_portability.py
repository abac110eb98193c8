"""Keras's own export of a model; tests/portability compares models on all backends."""

import numpy as np
from support import portability
from support.small_models import inputs_of, new_model


def test_keras_export_makes_a_saved_model(tmp_path):
    path, answers = tmp_path / "model.keras", tmp_path / "answers.npz"
    model = new_model("all_at_once", num_layers=1)
    model.save(path)
    portability.export(path, tmp_path / "saved_model", answers)
    expected = model.predict_on_batch(inputs_of(model))
    np.testing.assert_allclose(np.load(answers)["logits"], expected, atol=1e-4)
