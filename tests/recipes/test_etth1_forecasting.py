"""The recipe runs from end to end at toy size, and cuts its windows where the benchmark does."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
from support import reference
from support.contract import randomize, to_numpy, weights_of


def write_data(folder):
    folder.mkdir()
    hours = np.arange(17_420)
    rows = np.sin(hours[:, None] * np.arange(1, 8) / 24 * 2 * np.pi) * 3 + np.arange(7)
    lines = [",".join(["2016-07-01 00:00:00", *map("{:.4f}".format, row)]) for row in rows]
    (folder / "ETTh1.csv").write_text("\n".join(["date,a,b,c,d,e,f,g", *lines]))


@pytest.mark.each_backend_if_slow
@pytest.mark.slow
def test_recipe_runs_from_end_to_end(run_recipe, recipe, tmp_path, monkeypatch, capsys):
    write_data(tmp_path / "data")
    options = "--look-backs 16 --horizon 8 --num-layers 1 --d-model 4 --pretraining-steps 4"
    options += " --epochs 1 --batch-size 64"
    for split, hours in {"TRAIN": 200, "VALIDATION": 60, "TEST": 60}.items():
        monkeypatch.setitem(recipe["main"].__globals__, split, hours)
    report = run_recipe(options)
    assert [row["start"] for row in report["results"]] == list(recipe["STARTS"])
    assert all(0 < row["loss"] < 10 for row in report["results"])
    assert "| skip-gram windows |" in capsys.readouterr().out


@pytest.mark.each_backend_if_slow
def test_each_series_is_forecast_from_its_own_scaled_past(recipe, tmp_path):
    options = SimpleNamespace(patch_size=2, num_layers=2, d_model=12, dropout=0.0)
    encoder = recipe["new_encoder"](10, options)
    model = randomize(recipe["new_forecaster"](encoder, 7, 4, 0.0))
    past = np.random.default_rng(0).normal(3.0, 2.0, (3, 10, 4)).astype("float32")
    forecast = to_numpy(model(past))
    assert forecast.shape == (3, 7, 4)
    dense, positions, layers = (encoder.layers[i] for i in (1, 2, -1))
    for column in range(4):
        series = past[:, :, column]
        states = reference.dense(weights_of(dense), recipe["patches_of"](series, 2))
        states = reference.encode_positions(weights_of(positions), states, "learned")
        for layer in layers.layers:
            states = reference.layer(weights_of(layer), states, True, 4, "gelu")
        expected = reference.dense(weights_of(model.get_layer("forecast")), states.reshape(3, -1))
        deviation = np.sqrt(series.var(axis=1, keepdims=True) + 1e-5)
        expected = expected * deviation + series.mean(axis=1, keepdims=True)
        np.testing.assert_allclose(forecast[:, :, column], expected, atol=1e-4)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(to_numpy(loaded(past)), forecast)
