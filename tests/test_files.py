"""Writing leaves the old state or the new one; reading trusts no stranger."""

import errno
import hashlib
import io
import json
import os
import resource
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import keras
import pytest

from keras_transformer._files import (
    as_line,
    atomic_write,
    check_is_free,
    is_disk_full,
    is_plain_name,
    keras_home,
    output_file,
    read_config,
    read_json,
    sha256_of,
)
from keras_transformer.errors import UserError

MEBIBYTE = 1024 * 1024


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


def test_a_text_with_line_ends_stays_on_one_line():
    assert as_line("a\nb\r\nc\u2028d") == "a b  c\u2028d"


def test_full_disk_is_told_from_other_errors():
    assert is_disk_full(OSError(errno.ENOSPC, "No space left on device"))
    assert is_disk_full(OSError("Can't write (file write failed: errno = 28, error message = ...)"))
    assert not is_disk_full(OSError(errno.EACCES, "Permission denied"))
    assert not is_disk_full(ValueError("No space left on device"))


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_symbolic_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    link.symlink_to(target)
    for text in ("new", "newer"):  # At first there is no target.
        with output_file(link) as file:
            file.write(text)
        assert link.is_symlink()
        assert target.read_text() == text
    assert os.listdir(target.parent) == ["target"]


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o640])
def test_a_replaced_file_keeps_its_permissions(tmp_path, mode):
    path = tmp_path / "out"
    path.touch()
    path.chmod(mode)
    with output_file(path) as file:
        (partial,) = tmp_path.glob(".partial-*")
        assert mode_of(partial) & ~mode == 0  # Nobody else can read it meanwhile.
        file.write("new")
    assert (path.read_text(), mode_of(path)) == ("new", mode)


def test_a_pipe_gets_each_line_at_once(tmp_path):
    pipe, lines = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: lines.extend(pipe.open()))
    reader.start()
    with output_file(pipe) as file:
        file.write("a\n")
    reader.join()
    assert lines == ["a\n"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_devices_are_written_and_not_replaced(tmp_path):
    with output_file("/dev/null") as file:
        file.write("a")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    code = (
        "from keras_transformer._files import output_file\n"
        "with output_file('/dev/stdout') as file: file.write('a\\n')"
    )
    path = tmp_path / "log"
    path.write_text("before\n")
    with path.open("a") as log:
        subprocess.run([sys.executable, "-c", code], stdout=log, check=True)
    assert path.read_text() == "before\na\n"
    shown = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert shown.stdout == b"a\n"


def test_a_name_of_the_greatest_length_can_be_written(tmp_path):
    path = tmp_path / ("x" * 255)
    with output_file(path) as file:
        file.write("a")
    assert os.listdir(tmp_path) == [path.name]


def test_places_that_cannot_be_written_are_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for path, reason in (
        (tmp_path, "Is a directory"),
        (tmp_path / ("x" * 256), "File name too long"),
        (tmp_path / "file" / "out", "Not a directory"),
    ):
        with pytest.raises(UserError, match=f"^{path} cannot be written: {reason}$"):
            with output_file(path):
                raise AssertionError("opened")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(UserError, match="cannot be written: Permission denied"):
        with output_file(tmp_path / "file"):
            raise AssertionError("opened")
    assert os.listdir(tmp_path) == ["file"]


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
    with pytest.raises(UserError, match=f"{name} must have 2 bytes, as its header states"):
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
        ("[" * 100_000, "nested too deeply"),
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


def test_a_keras_home_that_cannot_be_written_is_replaced_as_keras_does(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    assert keras_home() == tmp_path / "home"
    with monkeypatch.context() as patch:
        patch.setenv("KERAS_HOME", "")
        assert keras_home() != Path()
    monkeypatch.setattr(os.path, "exists", lambda path: path == tmp_path)  # closed folders
    assert keras_home() == tmp_path / "home"
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    assert keras_home() == tmp_path / "temporary" / ".keras"


def test_new_and_empty_folders_are_free(tmp_path):
    check_is_free(tmp_path / "new")
    check_is_free(tmp_path)
    (tmp_path / "note").write_text("mine")
    for used in (tmp_path, tmp_path / "note"):
        with pytest.raises(UserError, match=f"{used} is not empty"):
            check_is_free(used)


def test_sha256_is_that_of_the_bytes(tmp_path):
    (tmp_path / "file").write_bytes(b"abc" * 100_000)
    assert sha256_of(tmp_path / "file") == hashlib.sha256(b"abc" * 100_000).hexdigest()
