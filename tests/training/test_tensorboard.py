"""Event files are TensorBoard's, and need no TensorFlow."""

import io

import numpy as np
from google.protobuf import text_format
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

from keras_transformer.training import TensorBoardWriter, write_projector


def test_tensorboard_reads_text_and_images(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3)).astype("uint8")
    values = {"translations": "zwölf | двенадцать", "attention/cross": pixels, "loss": 1.0}
    with TensorBoardWriter(tmp_path) as writer:
        writer.report(3, values)
    found = EventAccumulator(str(tmp_path)).Reload()
    assert "translations" in found.PluginTagToContent("text")
    assert "attention/cross" in found.PluginTagToContent("images")
    (text,), (image,) = (found.Tensors(name) for name in ("translations", "attention/cross"))
    assert (text.step, text.tensor_proto.string_val[0].decode()) == (3, "zwölf | двенадцать")
    width, height, file = image.tensor_proto.string_val
    assert (image.step, width, height) == (3, b"6", b"4")
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(file))), pixels)


def test_the_projector_has_vectors_with_their_words(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    words = ["a", "\t", "b c", "집"]
    write_projector(tmp_path / "logs", {"source": (vectors, words)})
    text = (tmp_path / "logs" / "projector_config.pbtxt").read_text()
    (embedding,) = text_format.Parse(text, ProjectorConfig()).embeddings
    assert embedding.tensor_name == "source"
    found = np.loadtxt(tmp_path / "logs" / embedding.tensor_path, delimiter="\t")
    np.testing.assert_allclose(found, vectors, rtol=1e-4)
    shown = (tmp_path / "logs" / embedding.metadata_path).read_text("utf-8")
    assert shown.splitlines() == ["a", "'\\t'", "b c", "집"]
