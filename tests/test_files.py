"""Writing leaves the old state or the new one; reading trusts no stranger."""

import errno
import io
import os
import resource
import stat
import subprocess
import sys
import threading

import pytest

from keras_transformer._files import (
    atomic_write,
    copy_file,
    is_disk_full,
    is_plain_name,
    output_file,
    read_json,
)
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


@pytest.mark.parametrize("has_links", [True, False])
def test_a_copied_file_replaces_the_old_copy(tmp_path, monkeypatch, has_links):
    def no_links(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    source, target = tmp_path / "model.keras", tmp_path / "model.previous.keras"
    source.write_text("new")
    target.write_text("old")
    for _ in range(2):
        copy_file(source, target)
        assert target.read_text() == source.read_text() == "new"
        assert sorted(os.listdir(tmp_path)) == ["model.keras", "model.previous.keras"]


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
