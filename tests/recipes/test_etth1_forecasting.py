"""The recipe runs from end to end at toy size, and cuts its windows where the benchmark does."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from support.recipes import run_recipe

RECIPE = Path(__file__).parents[2] / "recipes" / "etth1_forecasting.py"


@pytest.fixture(scope="module")
def recipe():
    return runpy.run_path(str(RECIPE))


def write_data(folder):
    folder.mkdir()
    hours = np.arange(17_420)
    rows = np.sin(hours[:, None] * np.arange(1, 8) / 24 * 2 * np.pi) * 3 + np.arange(7)
    lines = [",".join(["2016-07-01 00:00:00", *map("{:.4f}".format, row)]) for row in rows]
    (folder / "ETTh1.csv").write_text("\n".join(["date,a,b,c,d,e,f,g", *lines]))


@pytest.mark.slow
def test_recipe_runs_from_end_to_end(recipe, tmp_path, monkeypatch, capsys):
    write_data(tmp_path / "data")
    options = {
        "data-dir": tmp_path / "data", "output": tmp_path / "run", "look-backs": 16, "horizon": 8,
        "num-layers": 1, "d-model": 4, "pretraining-steps": 4, "epochs": 1, "batch-size": 64,
    }  # fmt: skip
    for split, hours in {"TRAIN": 200, "VALIDATION": 60, "TEST": 60}.items():
        monkeypatch.setitem(recipe["main"].__globals__, split, hours)
    run_recipe(recipe["main"], options, monkeypatch)
    report = json.loads((tmp_path / "run" / "results.json").read_text())
    assert [row["start"] for row in report["results"]] == list(recipe["STARTS"])
    assert all(0 < row["loss"] < 10 for row in report["results"])
    assert "| skip-gram windows |" in capsys.readouterr().out


def test_windows_and_scale_are_those_of_the_benchmark(recipe, tmp_path):
    write_data(tmp_path / "data")
    series = recipe["load_series"](tmp_path / "data")
    assert series.shape == (14_400, 7)
    np.testing.assert_allclose(series[:8_640].mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(series[:8_640].std(axis=0), 1, atol=1e-4)
    past, future = recipe["windows"](series, 11_520, 14_400, 512, 96)
    assert past.shape == (2_880 - 95, 512, 7) and future.shape == (2_880 - 95, 96, 7)
    np.testing.assert_array_equal(past[0], series[11_520 - 512 : 11_520])
    np.testing.assert_array_equal(future[-1], series[-96:])
    assert len(recipe["windows"](series, 0, 8_640, 96, 96)[0]) == 8_640 - 191


def test_windows_of_pretraining_come_from_one_series(recipe):
    series = (np.arange(1_000)[:, None] + 10_000 * np.arange(7)).astype("float32")
    center, context = recipe["draw"](series, 50, 64, np.random.default_rng(0), shifted=True)
    assert (np.diff(center, axis=1) == 1).all() and (np.diff(context, axis=1) == 1).all()
    np.testing.assert_array_equal(center[:, 0] // 10_000, context[:, 0] // 10_000)
    shifts = np.abs(center[:, 0] - context[:, 0])
    assert shifts.max() <= 50 and np.median(shifts) > 24
