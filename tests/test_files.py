"""Writing leaves the old state or the new one; reading trusts no stranger."""

import errno
import io
import os
import resource

import pytest

from keras_transformer._files import atomic_write, is_disk_full, is_plain_name, read_json
from keras_transformer.errors import UserError


def test_file_appears_only_when_it_is_complete(tmp_path):
    path = tmp_path / "new" / "scores.json"
    with atomic_write(path) as partial:
        partial.write_text("all")
        assert not path.exists()
        assert partial.suffix == ".json" and partial.parent == path.parent
    assert path.read_text() == "all"
    assert os.listdir(path.parent) == ["scores.json"]


def test_folder_appears_only_when_it_is_complete(tmp_path):
    path = tmp_path / "step-1"
    with atomic_write(path) as partial:
        partial.mkdir()
        (partial / "state.json").write_text("{}")
        assert not path.exists()
    assert (path / "state.json").read_text() == "{}"


def test_failure_keeps_the_old_file_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "scores.json"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic_write(path) as partial:
        partial.write_text("ne")
        raise RuntimeError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["scores.json"]


def test_what_a_killed_process_left_is_replaced(tmp_path):
    path = tmp_path / "step-1"
    with pytest.raises(KeyError), atomic_write(path) as partial:
        left_behind = partial
        raise KeyError
    left_behind.mkdir()
    (left_behind / "half").write_text("x")
    with atomic_write(path) as partial:
        partial.mkdir()
    assert os.listdir(path) == []


def test_full_disk_is_one_line_that_names_the_file_and_keeps_the_old_one(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("old")
    # A limit on the size of files makes the write fail as a full disk does.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(UserError, match=f"no space left on the disk for {path}"):
            with atomic_write(path) as partial:
                partial.write_bytes(bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["model.keras"]


def test_full_disk_is_told_from_other_errors():
    assert is_disk_full(OSError(errno.ENOSPC, "No space left on device"))
    assert is_disk_full(OSError("Can't write (file write failed: errno = 28, error message = ...)"))
    assert not is_disk_full(OSError(errno.EACCES, "Permission denied"))
    assert not is_disk_full(ValueError("No space left on device"))


@pytest.mark.parametrize("name", ["train.lc.norm.tok.en", "a b", "größe_1-2.gz", "x" * 200, "a..b"])
def test_names_of_files_are_plain(name):
    assert is_plain_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".ssh",
        "a/b",
        "/a",
        "a\\b",
        "C:a",
        "a\0",
        "a\nb",
        "\ud800",
        "x" * 201,
        "ü" * 101,
    ],
)
def test_names_that_lead_elsewhere_are_not_plain(name):
    assert not is_plain_name(name)


def test_json_is_read_up_to_its_limit():
    assert read_json(io.BytesIO(b'{"a": [1]}'), most_bytes=10) == {"a": [1]}
    endless = io.BytesIO(bytes(1000))
    with pytest.raises(ValueError, match="at most 10 bytes"):
        read_json(endless, most_bytes=10)
    assert endless.tell() == 11


def test_deep_json_is_no_crash():
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(io.BytesIO(b"[" * 10**5), most_bytes=10**5)
