"""Files made to fill the memory are refused before Keras reads them."""

import json
import struct
import tracemalloc
import zipfile
import zlib

import keras
import pytest

from keras_transformer.errors import UserError
from keras_transformer.keras_file import read_config

MEBIBYTE = 1024 * 1024


def write_archive(path, members, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def state_smaller_size(path, content, size):
    """Make the archive's directory state that its only member is the first bytes of `content`."""
    archive = bytearray(path.read_bytes())
    entry = archive.index(b"PK\x01\x02")
    struct.pack_into("<L", archive, entry + 16, zlib.crc32(content[:size]))
    struct.pack_into("<L", archive, entry + 24, size)
    path.write_bytes(archive)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_configuration_of_a_model_is_read(tmp_path, compression):
    path = tmp_path / "model.keras"
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, name="prime")])
    model.save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config = read_config(write_archive(path, members, compression))
    assert config == json.loads(members["config.json"])
    assert config["config"]["layers"][-1]["config"]["name"] == "prime"


@pytest.mark.parametrize("name", ["config.json", "metadata.json"])
def test_large_json_is_refused_unread(tmp_path, name):
    members = {"config.json": "{}", "metadata.json": "{}", name: b" " * (64 * MEBIBYTE)}
    path = write_archive(tmp_path / "model.keras", members)
    tracemalloc.start()
    with pytest.raises(UserError, match=f"{name} must have at most 4,194,304 bytes. Received: 67"):
        read_config(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MEBIBYTE


@pytest.mark.parametrize("name", ["config.json", "model.weights.h5"])
def test_a_member_larger_than_stated_is_refused(tmp_path, name):
    content = b"{}" + b" " * (64 * MEBIBYTE)
    path = write_archive(tmp_path / "model.keras", {name: content})
    state_smaller_size(path, content, 2)
    with zipfile.ZipFile(path) as archive:
        assert archive.read(name) == b"{}"  # what zipfile gives of it, at the cost of all
    tracemalloc.start()
    with pytest.raises(UserError, match=f"{name} must have the 2 bytes that are stated"):
        read_config(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * MEBIBYTE


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compression_that_unpacks_without_bound_is_refused(tmp_path, compression):
    path = write_archive(tmp_path / "model.keras", {"config.json": "{}"}, compression)
    with pytest.raises(UserError, match="config.json must be stored or deflated"):
        read_config(path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("[" * 100_000, "it is nested too deeply"),
        ("[]", "config.json must be a JSON object"),
        ("{", "is not a complete Keras model file"),
        (None, "no item named 'config.json'"),
    ],
)
def test_a_configuration_that_is_none_is_refused(tmp_path, config, message):
    members = {} if config is None else {"config.json": config}
    with pytest.raises(UserError, match=message):
        read_config(write_archive(tmp_path / "model.keras", members))


def test_something_else_is_refused(tmp_path):
    (tmp_path / "model.keras").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="model.keras is not a complete Keras model file"):
        read_config(tmp_path / "model.keras")
