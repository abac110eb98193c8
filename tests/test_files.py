"""Writing leaves the old state or the new one; reading is bounded."""

import errno
import multiprocessing
import os
import resource
import stat
import tempfile
import time
import zipfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from keras_transformer import _files
from keras_transformer._files import (
    atomic_write,
    check_is_free,
    keras_home,
    output_bytes,
    output_file,
    read_json_members,
    resumable_file,
)
from keras_transformer.errors import UserError


def test_file_and_folder_appear_only_when_they_are_complete(tmp_path):
    path, folder = tmp_path / "new" / "scores.json", tmp_path / "step-1"
    with atomic_write(path) as partial, atomic_write(folder) as partial_folder:
        assert partial.suffix == ".json" and partial.parent == path.parent
        partial.write_text("all")
        partial_folder.mkdir()
        (partial_folder / "state.json").write_text("{}")
        assert not path.exists() and not folder.exists()
    assert path.read_text() == "all"
    assert os.listdir(path.parent) == ["scores.json"]
    assert (folder / "state.json").read_text() == "{}"


def test_failure_keeps_the_old_file_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "scores.json"
    path.write_text("old")
    left = tmp_path / ".partial-scores-0123abcd.json"
    left.write_text("left by a killed process")
    os.utime(left, (0, time.time() - 25 * 3600))
    with pytest.raises(RuntimeError), atomic_write(path) as partial:
        assert not partial.exists()
        partial.write_text("ne")
        raise RuntimeError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["scores.json"]


def test_full_disk_is_one_line_that_names_the_file_and_keeps_the_old_one(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("old")
    # A limit on the size of files makes the write fail as a full disk does.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(UserError, match=f"no space left on the disk for {path}"):
            with output_file(path) as file:
                file.write("x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["model.keras"]


def write_in_two_parts(kind, path, text, parent):
    """Says "half" in the middle, waits for an answer, and says at last what was refused."""

    def pause():
        parent.send("half")
        parent.recv()

    try:
        if kind == "folder":
            with atomic_write(path) as partial:
                partial.mkdir()
                (partial / "text").write_text(text)
                pause()
        else:
            resumable = resumable_file(path, 1, "key")
            with output_file(path) if kind == "file" else resumable as writer:
                write = writer.write if kind == "file" else writer[0]
                write(text[:9])
                pause()
                write(text[9:])
        parent.send("")
    except UserError as error:
        parent.send(str(error))


@pytest.mark.parametrize("kind", ["file", "folder", "resumable"])
def test_two_processes_that_write_one_name_leave_all_of_one(kind, tmp_path):
    path = tmp_path / "out.txt"
    texts = [letter * 9 + "\n" + letter * 900 + "\n" for letter in "ab"]
    fork = multiprocessing.get_context("fork")
    pipes = [fork.Pipe() for _ in texts]
    for text, (_, parent) in zip(texts, pipes, strict=True):
        fork.Process(target=write_in_two_parts, args=(kind, path, text, parent)).start()
    said = [child.recv() for child, _ in pipes]
    for place, (child, _) in enumerate(pipes):
        if said[place] == "half":
            child.send("go on")
            said[place] = child.recv()
    refusals = {
        "file": [],
        "folder": [f"{path} is not empty: remove it, or name another folder"],
        "resumable": [f"another process is writing {path}: wait for it"],
    }
    assert [x for x in said if x] == refusals[kind]
    for process in multiprocessing.active_children():
        process.join()
    assert os.listdir(tmp_path) == ["out.txt"]
    written = (path / "text" if kind == "folder" else path).read_text()
    assert written == texts[1] if kind == "file" else written in texts


def test_a_symbolic_link_stays_and_its_target_keeps_its_permissions(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    for text in ("new", "newer"):  # At first there is no target.
        with output_file(link) as file:
            file.write(text)
        target.chmod(0o640)
    assert link.is_symlink()
    assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == ("newer", 0o640)


def test_a_pipe_stays_and_gets_the_content(tmp_path):
    pipe = tmp_path / "pipe.html"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with output_bytes(pipe) as file:
        file.write(b"whole ")
    with output_file(pipe) as file:
        file.write("line")
    with resumable_file(pipe, 1, "text") as (write, done):
        write(f", {done}")
    assert os.read(reader, 100) == b"whole line, 0"
    assert os.listdir(tmp_path) == ["pipe.html"] and stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_file_that_is_mounted_is_written_and_a_folder_refused(tmp_path, monkeypatch):
    path = tmp_path / "mounted"
    path.write_text("old")
    node = path.stat().st_ino

    def replace(*_):
        raise OSError(errno.EBUSY, "busy")

    monkeypatch.setattr(os, "replace", replace)
    with atomic_write(path) as partial:
        partial.write_text("new")
    assert path.read_text() == "new" and path.stat().st_ino == node
    assert os.listdir(tmp_path) == ["mounted"]
    with pytest.raises(UserError, match="mount point"):
        check_is_free("/proc")


def test_a_text_is_continued_after_its_last_complete_block(tmp_path):
    path, blocks = tmp_path / "new" / "out", ["a\nb\n", "c\nd\n", "é\n"]
    whole = "".join(blocks).encode()
    for kept, done in ((0, 0), (1, 0), (3, 0), (4, 1), (7, 1), (8, 2), (9, 2), (11, 2)):
        with pytest.raises(KeyboardInterrupt), resumable_file(path, 2, "key") as (write, _):
            (partial,) = path.parent.glob(".partial-*")
            write("".join(blocks))
            raise KeyboardInterrupt
        partial.write_bytes(whole[:kept])
        with resumable_file(path, 2, "key") as (write, found):
            assert found == done and not path.exists()
            for block in blocks[done:]:
                write(block)
        assert path.read_bytes() == whole and os.listdir(path.parent) == ["out"]
        path.unlink()


def test_a_process_that_waited_for_another_writes_its_own_text(tmp_path, monkeypatch):
    path = tmp_path / "out"

    @contextmanager
    def waited(lock, message):
        lock.touch()
        for left in tmp_path.glob(".partial-*"):
            left.rename(path)  # The other process has finished.
        yield

    monkeypatch.setattr(_files, "locked", waited)
    with resumable_file(path, 1, "key") as (write, done):
        write("a\n")
    assert (done, path.read_text(), os.listdir(tmp_path)) == (0, "a\n", ["out"])


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"config.json": " " * 2**26}, "config.json must have at most 16,777,216 bytes. Received"),
        ({"config.json": "{}", "metadata.json": " " * 2**26}, "metadata.json must have at most"),
        ({"config.json": "[" * 100_000}, "too deeply"),
        ({"config.json": "[]"}, "config.json must be a JSON object"),
        ({"model.weights.h5": " " * 2**26}, "model.weights.h5 must have at most"),
        ({}, "config.json must be a JSON object"),
        (None, "model.keras is not a complete Keras model file"),
    ],
)
def test_a_configuration_that_is_none_is_refused(tmp_path, members, message):
    path = tmp_path / "model.keras"
    path.write_bytes(b"nonsense")
    if members is not None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
    with pytest.raises(UserError, match=message):
        read_json_members(path)


def test_a_keras_home_that_cannot_be_written_is_replaced_as_keras_does(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    assert keras_home() == tmp_path / "home"
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/temporary")
    assert keras_home() == Path("/temporary/.keras")
