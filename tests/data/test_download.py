"""Downloads: in the cache alone, and verified before they appear."""

import hashlib
import time

import pytest
from support.local_server import answer, local_server

from keras_transformer.data import corpus
from keras_transformer.data.corpus import download
from keras_transformer.errors import UserError

CONTENT = b"a line\n" * 1_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server():
    with local_server() as server:
        server.answers["/data/train.en"] = answer(CONTENT)
        yield server


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The folder of the file in a cache of the test's own."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home" / "keras"))
    return tmp_path / "home" / "keras" / "keras_transformer" / SHA256[:16]


def fetch(server, name="train.en", sha256=SHA256):
    return download(name, f"{server.url}/data/", sha256)


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


def test_redirects_are_followed(server):
    server.answers["/old/train.en"] = answer(b"", 302, Location="/data/train.en")
    assert download("train.en", f"{server.url}/old", SHA256).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("served", "message"),
    [
        (answer(b"something else"), f"the SHA-256 must be {SHA256}. Received: "),
        (answer(CONTENT[:-9], Content_Length="7000"), "the SHA-256 must be "),
        (answer(b"", 404), "HTTP Error 404"),
        (answer(b"", 302, Location="file:///etc/passwd"), "HTTP Error 302"),
        (answer(b"", 302, Location="/data/train.en"), "infinite loop"),
        (lambda handler: time.sleep(1), "timed out"),
    ],
)
def test_a_failure_is_one_line_and_leaves_the_cache_unchanged(
    server, cache, monkeypatch, served, message
):
    monkeypatch.setattr(corpus, "_SILENCE_SECONDS", 0.3)
    server.answers["/data/train.en"] = served
    with pytest.raises(UserError, match=f"/data/train.en cannot be fetched .*{message}") as caught:
        fetch(server)
    assert "\n" not in str(caught.value)
    assert not list(cache.glob("*"))
