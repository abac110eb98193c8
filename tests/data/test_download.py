"""Downloads: in the cache alone, verified before they appear, and bounded in time and size."""

import gzip
import hashlib
import subprocess
import sys
import time

import keras
import pytest
from support.local_server import answer, local_server

from keras_transformer.data import download as module
from keras_transformer.data.download import download
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


def files_below(folder):
    return {path for path in folder.rglob("*") if not path.is_dir()}


def refuse(server, message, **arguments):
    with pytest.raises(UserError, match=message):
        fetch(server, **arguments)


def test_a_file_is_downloaded_once(server, cache):
    assert fetch(server) == cache / "train.en"
    assert (cache / "train.en").read_bytes() == CONTENT
    fetch(server)
    assert [path for path, _ in server.requests] == ["/data/train.en"]
    assert [path.name for path in cache.iterdir()] == ["train.en"]


def test_a_file_that_keras_has_cached_is_used(server, cache, tmp_path):
    (tmp_path / "train.en").write_bytes(CONTENT)
    home, subfolder = cache.parents[1], f"keras_transformer/{SHA256[:16]}"
    home.mkdir(parents=True)
    uri = (tmp_path / "train.en").as_uri()
    keras.utils.get_file("train.en", uri, cache_dir=home, cache_subdir=subfolder)
    assert fetch(server) == cache / "train.en"
    assert server.requests == []


def test_a_wrong_hash_leaves_nothing(server, tmp_path):
    refuse(server, f"SHA-256 must be {'0' * 64}. Received: {SHA256}", sha256="0" * 64)
    assert files_below(tmp_path) == set()


def test_a_wrong_hash_leaves_the_file_that_was_there(server, cache):
    cache.mkdir(parents=True)
    (cache / "train.en").write_bytes(b"older")
    server.answers["/data/train.en"] = answer(b"wrong")
    refuse(server, "the file's SHA-256 must be")
    assert files_below(cache.parent) == {cache / "train.en"}
    assert (cache / "train.en").read_bytes() == b"older"


def test_a_damaged_file_of_the_cache_is_replaced(server, cache):
    cache.mkdir(parents=True)
    (cache / "train.en").write_bytes(b"damaged")
    assert fetch(server).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("name", "sha256"),
    [
        ("authorized_keys", "../../.ssh"),
        ("authorized_keys", "../../.ssh/../.ssh/aaaa"),
        ("../train.en", SHA256),
        ("../../../train.en", SHA256),
        ("/train.en", SHA256),
        ("", SHA256),
    ],
)
def test_nothing_is_written_outside_the_cache(server, cache, tmp_path, name, sha256):
    cache.mkdir(parents=True)
    refuse(server, "must be in a folder of its own", name=name, sha256=sha256)
    assert server.requests == []
    assert files_below(tmp_path) == set()


def test_links_of_the_cache_are_not_followed_out_of_it(server, cache, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    cache.parent.mkdir(parents=True)
    cache.symlink_to(tmp_path / "elsewhere")
    refuse(server, "must be in a folder of its own")
    assert files_below(tmp_path / "elsewhere") == set()


def test_a_stated_size_over_the_limit_is_refused(server, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "MOST_BYTES", len(CONTENT) - 1)
    refuse(server, f"must have at most {len(CONTENT) - 1:,} bytes")
    assert files_below(tmp_path) == set()


def test_a_body_without_end_is_refused(server, monkeypatch, tmp_path):
    def send(handler):
        handler.send_response(200)
        handler.end_headers()
        for _ in range(200):
            handler.wfile.write(bytes(10_000))

    server.answers["/data/train.en"] = send
    monkeypatch.setattr(module, "MOST_BYTES", 100_000)
    refuse(server, "must have at most 100,000 bytes")
    assert files_below(tmp_path) == set()


def trickle(status_line):
    """Bytes of a header or of a body, one now and then: no time-out of a read ever strikes."""

    def send(handler):
        handler.wfile.write(status_line)
        for _ in range(60):
            handler.wfile.write(b"x")
            time.sleep(0.05)

    return send


@pytest.mark.parametrize("status_line", [b"HTTP/1.0 200 OK\r\nX: ", b"HTTP/1.0 200 OK\r\n\r\n"])
def test_a_server_that_trickles_is_left_at_the_deadline(server, monkeypatch, tmp_path, status_line):
    server.answers["/data/train.en"] = trickle(status_line)
    monkeypatch.setattr(module, "MOST_SECONDS", 0.3)
    refuse(server, "the download must end within 0.3 s")
    assert files_below(tmp_path) == set()


def test_a_silent_server_is_left(server, monkeypatch):
    server.answers["/data/train.en"] = lambda handler: time.sleep(2)
    monkeypatch.setattr(module, "SILENCE_SECONDS", 0.2)
    refuse(server, "cannot be fetched.*timed out")


def test_redirects_are_followed_without_reading_their_bodies(server, monkeypatch):
    # Reading that body would fail: less comes than is stated.
    redirect = answer(b"", 302, Location="/data/train.en", Content_Length="1000000")
    server.answers["/old/train.en"] = redirect
    assert download("train.en", f"{server.url}/old", SHA256).read_bytes() == CONTENT


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/train.en"])
def test_redirects_to_other_protocols_are_refused(server, location):
    server.answers["/data/train.en"] = answer(b"", 302, Location=location)
    refuse(server, f"a redirect must lead to http.* Received: '{location}'")


def test_redirects_in_a_circle_are_refused(server):
    server.answers["/data/train.en"] = answer(b"", 302, Location="/data/train.en")
    refuse(server, "must answer with status 200. Received: 302")
    assert len(server.requests) == 1 + module.MOST_REDIRECTS


def test_files_of_this_machine_are_no_downloads(tmp_path):
    (tmp_path / "train.en").write_bytes(CONTENT)
    with pytest.raises(UserError, match="cannot be fetched"):
        download("train.en", tmp_path.as_uri(), SHA256)


def test_a_missing_file_is_one_line_with_the_address(server):
    with pytest.raises(
        UserError, match="/data/test%20%23.en cannot be fetched.*data.directory"
    ) as caught:
        fetch(server, name="test #.en")
    assert str(caught.value).endswith("the server must answer with status 200. Received: 404")


def test_a_gzipped_file_stays_gzipped(server):
    packed = gzip.compress(CONTENT)
    server.answers["/data/train.en.gz"] = answer(packed, Content_Encoding="gzip")
    path = fetch(server, "train.en.gz", hashlib.sha256(packed).hexdigest())
    assert path.read_bytes() == packed


def test_the_users_credentials_are_not_sent(server, tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    server.answers["/old/train.en"] = answer(b"", 302, Location="/data/train.en")
    download("train.en", f"{server.url}/old", SHA256)
    assert len(server.requests) == 2
    for _, headers in server.requests:
        assert "Authorization" not in headers


def test_neither_keras_nor_an_engine_is_loaded():
    code = (
        "import sys, keras_transformer.data.download; "
        "print({'keras', 'tensorflow', 'jax', 'torch'} & set(sys.modules))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "set()"
