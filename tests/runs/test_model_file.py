"""Models and the texts beside them in .keras files."""

import zipfile

import pytest

from keras_transformer.errors import UserError
from keras_transformer.models import Transformer
from keras_transformer.runs.model_file import load_model, read_member


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_truncated_model_is_one_line_with_the_path(tmp_path, share):
    path = tmp_path / "model.keras"
    Transformer(11, num_layers=1, d_model=6, num_heads=2, d_ff=7).save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(UserError, match=f"{path} is not a complete Keras model file"):
        load_model(path)


def test_model_with_a_huge_configuration_is_refused(tmp_path):
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", b" " * 2**26)
    with pytest.raises(UserError, match="config.json must have at most 4,194,304 bytes"):
        load_model(path)


def test_a_member_is_read_or_none(tmp_path):
    path = tmp_path / "model.keras"
    assert read_member(path, "note") is None
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("note", "ü")
    assert read_member(path, "note") == "ü" and read_member(path, "other") is None
    path.write_bytes(path.read_bytes()[:20])
    assert read_member(path, "note") is None
