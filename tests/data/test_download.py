import functools
import hashlib

import keras
import pytest

from keras_transformer.data.download import fetch
from keras_transformer.errors import UserError

TEXT = b"a dog runs\n"
SHA256 = hashlib.sha256(TEXT).hexdigest()
URL = "https://example.invalid/corpus/train.en"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Downloads go to a folder of the test, which Keras wants to exist."""
    folder = tmp_path / "cache"
    folder.mkdir()
    get_file = functools.partial(keras.utils.get_file, cache_dir=folder)
    monkeypatch.setattr(keras.utils, "get_file", get_file)
    return folder


@pytest.mark.parametrize("folder", [".", "multi30k/raw"])
def test_file_is_found_in_the_folder(tmp_path, folder):
    path = tmp_path / folder / "train.en"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(TEXT)
    assert fetch(URL, SHA256, tmp_path) == path


def test_right_one_of_several_files_is_found(tmp_path):
    for folder, text in (("a", b"other"), ("b", TEXT)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.en").write_bytes(text)
    assert fetch(URL, SHA256, tmp_path) == tmp_path / "b" / "train.en"


def test_missing_and_wrong_files_are_named(tmp_path):
    with pytest.raises(UserError, match="no file train.en in "):
        fetch(URL, SHA256, tmp_path)
    (tmp_path / "train.en").write_bytes(b"other")
    with pytest.raises(UserError, match=f"train.en is not the file of .*{SHA256}"):
        fetch(URL, SHA256, tmp_path)


def test_file_is_downloaded_once(tmp_path, cache):
    origin = tmp_path / "train.en"
    origin.write_bytes(TEXT)
    path = fetch(origin.as_uri(), SHA256)
    assert cache in path.parents
    assert path.read_bytes() == TEXT
    origin.unlink()
    assert fetch(origin.as_uri(), SHA256) == path


def test_download_with_another_checksum_is_refused(tmp_path, cache):
    (tmp_path / "train.en").write_bytes(b"other")
    with pytest.raises(UserError, match="train.en cannot be fetched"):
        fetch((tmp_path / "train.en").as_uri(), SHA256)


def test_failed_download_is_one_clear_error(tmp_path, cache):
    with pytest.raises(UserError, match="absent cannot be fetched; get it by other means"):
        fetch((tmp_path / "absent").as_uri(), SHA256)
