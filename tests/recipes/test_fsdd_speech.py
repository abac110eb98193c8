"""The recipe runs from end to end at toy size, and counts errors as Levenshtein does."""

import io
import tarfile
import wave

import keras
import numpy as np
import pytest
from support.contract import assert_cached_equals_full_decoding, randomize, to_numpy


def write_data(folder):
    generator = np.random.default_rng(0)
    folder.mkdir()
    with tarfile.open(folder / "recordings.tar.gz", "w:gz") as archive:
        for digit in range(10):
            for index in (0, 5, 8):
                data = io.BytesIO()
                with wave.open(data, "wb") as file:
                    file.setparams((1, 2, 8_000, 0, "NONE", ""))
                    noise = generator.integers(-999, 999, generator.integers(500, 900))
                    file.writeframes(noise.astype("<i2").tobytes())
                entry = tarfile.TarInfo(f"recordings/{digit}_ann_{index}.wav")
                entry.size = data.tell()
                data.seek(0)
                archive.addfile(entry, data)


@pytest.mark.each_backend_if_slow
@pytest.mark.slow
def test_recipe_runs_from_end_to_end(run_recipe, tmp_path):
    write_data(tmp_path / "data")
    options = "--dtype float32 --num-layers 1 --d-model 8 --steps 2 --checkpoint-every 1"
    options += " --batch-size 2 --beam-size 2 --strings 3"
    report = run_recipe(options)
    model = keras.models.load_model(tmp_path / "run" / "model.keras")
    assert report["parameters"] == model.count_params()
    assert "0.08 s, band 2" in (tmp_path / "run" / "attention.html").read_text("utf-8")
    assert 0 <= report["accuracy"] <= 1 and report["word_error_rate"] >= 0


def spectrograms(batch=2, frames=24):
    return np.random.default_rng(0).normal(size=(batch, frames, 80)).astype("float32")


@pytest.mark.each_backend_if_slow
def test_a_patch_is_projected_and_gets_its_time_and_band(recipe):
    layer, x = recipe["SpectrogramPatches"](10), spectrograms()
    layer.build(x.shape)
    randomize(layer)
    x[:, 8:16] = 0  # Silence within a recording is not padding.
    found, mask = layer(np.pad(x, ((0, 0), (0, 16), (0, 0))))
    assert to_numpy(mask).tolist() == [[True] * 12 + [False] * 8] * 2
    kernel, bias = map(to_numpy, layer.projection.weights)
    times = to_numpy(layer.times(np.zeros((1, 3, 10), "float32")))[0]
    for time in range(3):
        for band in range(4):
            patch = x[:, 8 * time : 8 * time + 8, 20 * band : 20 * band + 20].reshape(2, -1)
            expected = patch @ kernel.reshape(-1, 10) + bias + times[time]
            expected = expected + to_numpy(layer.band_embeddings)[band]
            np.testing.assert_allclose(to_numpy(found)[:, 4 * time + band], expected, atol=1e-4)


@pytest.mark.each_backend_if_slow
def test_steps_equal_the_call(recipe):
    model = randomize(recipe["SpeechTransformer"](1, 12))
    beams = np.random.default_rng(1).integers(2, 14, (2, 3, 5)).astype("int32")
    assert_cached_equals_full_decoding(model, spectrograms(), beams, "features")
