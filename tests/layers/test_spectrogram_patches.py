"""Patches of a spectrogram."""

import keras
import numpy as np
import pytest
from support.contract import randomize, to_numpy

from keras_transformer import SinusoidalPositionalEncoding, SpectrogramPatches

D, FRAMES, BANDS = 10, 3, 2


def spectrograms(frames=7):
    return np.random.default_rng(0).normal(size=(2, frames, 3 * BANDS)).astype("float32")


@pytest.fixture
def layer():
    layer = SpectrogramPatches(D, FRAMES, BANDS)
    layer.build((None, None, 3 * BANDS))
    randomize(layer)
    return layer


def test_a_patch_is_projected_and_gets_its_time_and_band(layer):
    x = spectrograms()
    found, mask = layer(x)
    assert found.shape == (2, 9, D) and to_numpy(mask).all()
    padded = np.pad(x, ((0, 0), (0, 2), (0, 0)))
    kernel, bias = map(to_numpy, layer.projection.weights)
    times = to_numpy(SinusoidalPositionalEncoding()(np.zeros((1, 3, D), "float32")))[0]
    for time in range(3):
        for band in range(3):
            patch = padded[:, 3 * time : 3 * time + 3, 2 * band : 2 * band + 2].reshape(2, -1)
            expected = patch @ kernel.reshape(-1, D) + bias + times[time]
            expected = expected + to_numpy(layer.band_embeddings)[band]
            np.testing.assert_allclose(to_numpy(found)[:, 3 * time + band], expected, atol=1e-5)


def test_frames_of_zeros_are_padding(layer):
    x = spectrograms()
    found, mask = layer(np.pad(x, ((0, 0), (0, 4), (0, 0))))
    np.testing.assert_allclose(to_numpy(found)[:, :9], to_numpy(layer(x)[0]), atol=1e-6)
    assert to_numpy(mask).tolist() == [[True] * 9 + [False] * 3] * 2


def test_silence_within_a_recording_is_not_padding(layer):
    x = spectrograms()
    x[:, FRAMES : 2 * FRAMES] = 0
    assert to_numpy(layer(x)[1]).all()


def test_a_recording_of_silence_has_one_time_of_patches(layer):
    for frames in (1, 7, 13):
        found, mask = layer(np.zeros((1, frames, 3 * BANDS), "float32"))
        assert to_numpy(mask).sum() == 3
        assert to_numpy(mask)[0, :3].all()
        expected = to_numpy(layer(np.zeros((1, 1, 3 * BANDS), "float32"))[0])
        np.testing.assert_allclose(to_numpy(found)[:, :3], expected, atol=1e-6)


def test_numbers_too_small_for_float16_are_no_padding():
    layer = SpectrogramPatches(D, FRAMES, BANDS, dtype="mixed_float16")
    found, mask = layer(np.full((1, 7, 3 * BANDS), 1e-9, "float32"))
    assert to_numpy(mask).all()
    assert keras.backend.standardize_dtype(found.dtype) == "float16"


def test_no_frames_are_refused(layer):
    with pytest.raises(ValueError, match=r"at least one frame.*\(2, 0, 6\)"):
        layer(spectrograms(0))


def test_bands_that_patches_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="`patch_bands` must divide.*patch_bands=4"):
        SpectrogramPatches(D, FRAMES, 4)(spectrograms())


def test_shapes_are_known_without_computing(layer):
    vectors, mask = layer(keras.Input((None, 3 * BANDS)))
    assert (vectors.shape, mask.shape) == ((None, None, D), (None, None))
    vectors, mask = layer(keras.Input((7, 3 * BANDS)))
    assert (vectors.shape, mask.shape) == ((None, 9, D), (None, 9))


def test_a_saved_layer_keeps_lora_and_frozen_weights(tmp_path):
    spectrogram = keras.Input((None, 3 * BANDS))
    vectors, _ = SpectrogramPatches(D, FRAMES, BANDS, name="patches")(spectrogram)
    model = keras.Model(spectrogram, vectors)
    model.get_layer("patches").projection.enable_lora(2)
    model.get_layer("patches").projection.trainable = False
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras").get_layer("patches")
    assert loaded.projection.lora_enabled and len(loaded.trainable_variables) == 1
