"""Images are PNG files that another library reads."""

import io

import numpy as np
import pytest
from PIL import Image

from keras_transformer._files import png

pytestmark = pytest.mark.once


def test_pillow_reads_the_same_pixels():
    pixels = np.random.default_rng(0).integers(0, 256, (3, 5, 3)).astype("uint8")
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(png(pixels)))), pixels)
