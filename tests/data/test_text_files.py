"""Text is read line by line and refused by line; files are downloaded and verified."""

import gzip
import hashlib
import lzma
import re
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
from support.local_server import answer, local_server

from keras_transformer.data import CorpusError, read_lines, read_parallel, text_files
from keras_transformer.data.text_files import available_chunks, download, read_standard_input
from keras_transformer.errors import UserError

LONGEST = 1024 * 1024


def write(path, data):
    path.write_bytes(data)
    return path


def test_the_content_of_a_file_tells_whether_it_is_compressed(tmp_path):
    assert list(read_lines(write(tmp_path / "b.gz", b"plain\n"))) == ["plain"]


@pytest.mark.parametrize(
    ("encoding", "text", "command"),
    [
        ("utf-16", "schön\nwie\n", "It may be UTF-16, .*: iconv -f UTF-16 -t UTF-8$"),
        ("utf-16-le", "Hello there\nnext\n", "iconv -f UTF-16LE "),
        ("utf-16-be", "Привет, как твои дела сегодня\nХорошо\n", "iconv -f UTF-16BE "),
        ("utf-32", "Hello\n", "iconv -f UTF-32 "),
        ("cp1252", "ASCII\nEine schöne Straße\n" * 3, "line 2: .* 0xf6 .*iconv -f CP1252 "),
        ("cp1252", "It’s raining.\n", "iconv -f CP1252 "),
        ("cp1252", "Où est la gare ?\nC’est l’été.\n", "iconv -f CP1252 "),
        ("cp1251", "Привет, как твои дела сегодня\n" * 3, "iconv -f CP1251 "),
        ("shift_jis", "今日は良い天気ですね。散歩に行きましょう。\n" * 3, "iconv -f CP932 "),
        ("euc-jp", "今日は良い天気ですね。散歩に行きましょう。\n" * 3, "iconv -f EUC-JP "),
        ("iso2022-jp", "今日は良い天気ですね。\n" * 3, "0x1b at column 1.*iconv -f ISO-2022-JP "),
    ],
)
def test_other_encodings_are_named_with_the_command(tmp_path, encoding, text, command):
    data = text.encode(encoding)
    for content in (data, lzma.compress(data)):
        with pytest.raises(CorpusError, match=command):
            list(read_lines(write(tmp_path / "a.de", content)))


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("my text.xlsx", "soffice --headless --convert-to csv 'my text.xlsx'"),
        ("a.DOCX", "soffice --headless --convert-to txt:Text a.DOCX"),
        ("data.arrow", """python -c 'import datasets, sys; datasets.Dataset.from_file"""),
        ("en-de.tgz", "tar -xf en-de.tgz"),
        ("en-de.txt.zip", "unzip en-de.txt.zip"),
        ("ref.de.sgm", "> text.txt sed "),
    ],
)
def test_files_without_lines_name_what_converts_them(tmp_path, monkeypatch, name, command):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorpusError, match=f"A command that converts it: {re.escape(command)}"):
        list(read_lines(write(Path(name), b"PK\x03\x04")))


@pytest.mark.parametrize(("source_count", "target_count"), [(3, 5), (5, 3), (0, 1)])
def test_unequal_numbers_of_lines_are_refused(tmp_path, source_count, target_count):
    source = write(tmp_path / "text.en", b"x\n" * source_count)
    target = write(tmp_path / "text.de", b"y\n" * target_count)
    with pytest.raises(CorpusError) as caught:
        list(read_parallel(source, target))
    assert f"text.en with {source_count} " in str(caught.value)
    assert str(caught.value).endswith(f"text.de with {target_count} lines")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "text: cannot be read: No such file"),
        (b"a\tgut\nsch\xf6n\tb\n", "text, line 2: text must be UTF-8. .*0xf6 at column 4"),
        (b"\xef\xbb\xbf" + b"a" * LONGEST, "line 1: a line must have at most"),
        (gzip.compress(bytes(range(256)) * 9)[:-99], "text: cannot be read: Compressed file ended"),
    ],
)
def test_files_that_are_no_parallel_text_are_refused(tmp_path, content, message):
    path = tmp_path / "text" if content is None else write(tmp_path / "text", content)
    with pytest.raises(CorpusError, match=message):
        list(read_parallel(path))
    with pytest.raises(CorpusError, match="cannot be read: Is a directory"):
        list(read_lines(tmp_path))


def test_a_long_line_is_refused_before_it_is_in_memory(tmp_path):
    packed = gzip.compress(b"short\n" + bytes(64 * LONGEST), compresslevel=1)
    path = write(tmp_path / "text.gz", packed)
    tracemalloc.start()
    with pytest.raises(CorpusError, match=r"text\.gz, line 2: .* at most 1,048,576 bytes"):
        list(read_lines(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * LONGEST


def test_an_error_comes_after_the_items_before_it():
    def items():
        yield 1
        yield 2
        raise ValueError("third")

    chunks = available_chunks(items(), most=8)
    assert next(chunks) == [1, 2]
    with pytest.raises(ValueError, match="third"):
        next(chunks)


def test_standard_input_that_cannot_be_read_is_an_error(monkeypatch, tmp_path):
    with (tmp_path / "s").open("wb") as file:
        monkeypatch.setattr(sys, "stdin", open(file.fileno(), closefd=False))
        with pytest.raises(CorpusError, match="^standard input cannot be read: Bad file desc"):
            list(read_standard_input())


CONTENT = b"a line\n" * 1_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server():
    with local_server() as server:
        server.answers["/data/train.en"] = answer(CONTENT)
        yield server


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of the file in a cache of the test's own."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home" / "keras"))
    return tmp_path / "home" / "keras" / "keras_transformer" / SHA256[:16]


def fetch(server):
    return download("train.en", f"{server.url}/data/", SHA256)


def test_a_file_is_downloaded_once_unless_it_is_damaged(server, cache, capsys, notebook):
    assert fetch(server) == cache / "train.en"
    assert (cache / "train.en").read_bytes() == CONTENT
    output, errors = capsys.readouterr()
    assert output == "" and "train.en: 100%" in errors
    fetch(server)
    assert [path for path, _ in server.requests] == ["/data/train.en"]
    assert [path.name for path in cache.iterdir()] == ["train.en"]
    (cache / "train.en").write_bytes(CONTENT[:-1])
    assert fetch(server).read_bytes() == CONTENT


def test_redirects_are_followed(server, cache):
    server.answers["/old/train.en"] = answer(b"", 302, Location="/data/train.en")
    assert download("train.en", f"{server.url}/old", SHA256).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("served", "message"),
    [
        (answer(b"something else"), f"the SHA-256 of train.en must be {SHA256}. Received: "),
        (answer(CONTENT[:-9], Content_Length="7000"), "the SHA-256 of train.en must be "),
        (answer(b"", 404), "HTTP Error 404"),
        (answer(b"", 302, Location="file:///etc/passwd"), "HTTP Error 302"),
        (lambda handler: time.sleep(1), "timed out"),
    ],
)
def test_a_failure_is_one_line_and_leaves_the_cache_unchanged(
    server, cache, monkeypatch, served, message
):
    monkeypatch.setattr(text_files, "_SILENCE_SECONDS", 0.3)
    server.answers["/data/train.en"] = served
    with pytest.raises(UserError, match=f"/data/train.en cannot be fetched .*{message}") as caught:
        fetch(server)
    assert "\n" not in str(caught.value)
    assert not list(cache.glob("*"))
