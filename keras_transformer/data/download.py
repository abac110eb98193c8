"""Downloads files and verifies their SHA-256."""

import os
import tempfile
import threading
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, urljoin, urlsplit

import requests

from keras_transformer._files import keras_home, sha256_of
from keras_transformer._progress import Bar
from keras_transformer.errors import UserError

# Limits of a download. The largest parallel corpora in one file have a few gigabytes.
MOST_BYTES = 8 * 1024**3
MOST_SECONDS, CONNECT_SECONDS, SILENCE_SECONDS = 4 * 60 * 60.0, 10.0, 60.0
MOST_REDIRECTS = 10
_CHUNK_BYTES = 64 * 1024


def download(name: str, folder_url: str, sha256: str) -> Path:
    """Downloads a file into the cache if the cache does not have the file.

    The cache is the folder `keras_transformer/<first 16 digits of the SHA-256>` in `KERAS_HOME`, by
    default in `~/.keras`. A file is moved into the cache after its download is complete and
    verified. Every call verifies the file in the cache, and downloads a damaged file again.

    Args:
        name: Name of the file, without a folder.
        folder_url: URL of the folder that contains the file, with http or https.
        sha256: SHA-256 of the file, 64 lower-case hex digits.

    Returns:
        Path of the file in the cache.

    Raises:
        UserError: If the download fails or takes more than four hours, if the file is larger than 8
            GiB, or if its SHA-256 is not `sha256`. After an error, the cache is unchanged.
    """
    cache = keras_home() / "keras_transformer"
    path = cache / sha256[:16] / name
    if path.resolve().parent != cache.resolve() / sha256[:16]:
        raise UserError(f"a download must be in a folder of its own in {cache}. Received: {path}")
    url = f"{folder_url.rstrip('/')}/{quote(name)}"
    try:
        if not path.is_file() or sha256_of(path) != sha256:
            _fetch_verified(url, path, sha256)
    except Exception as error:  # requests, urllib3 and the system raise different types
        message = (
            f"{url} cannot be fetched (for local files, use --data-dir, or set data.directory of "
            f"the recipe): {error}"
        )
        raise UserError(" ".join(message.split())) from error
    return path


def _fetch_verified(url: str, path: Path, sha256: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # The folder is temporary, because another process may be downloading the same file.
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=path.parent) as partial:
        complete = Path(partial) / path.name
        with complete.open("wb") as file:
            _fetch_in_time(url, file)
        if (received := sha256_of(complete)) != sha256:
            raise ValueError(f"the file's SHA-256 must be {sha256}. Received: {received}")
        os.replace(complete, path)


def _fetch_in_time(url: str, file: BinaryIO) -> None:
    """Downloads in a thread, so that the time limit also holds for a slow server.

    After a time-out, the caller closes the file. The thread's next write to the closed file fails,
    and the thread ends.
    """
    failures: list[Exception] = []

    def fetch() -> None:
        try:
            _fetch(url, file)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=fetch, daemon=True)
    thread.start()
    thread.join(MOST_SECONDS)
    if thread.is_alive():
        raise TimeoutError(f"the download must end within {MOST_SECONDS:g} s")
    if failures:
        raise failures[0]


def _fetch(url: str, file: BinaryIO) -> None:
    with _open(url) as response:
        size = int(response.headers.get("Content-Length", 0))
        title = Path(file.name).name
        with Bar(title, total=size or None, unit="B", unit_scale=True) as bar:
            for chunk in response.raw.stream(_CHUNK_BYTES, decode_content=False):  # does not unzip
                bar.update(len(chunk))
                if max(size, bar.n) > MOST_BYTES:
                    raise ValueError(
                        f"the file must have at most {MOST_BYTES:,} bytes. Received: more"
                    )
                file.write(chunk)


def _open(url: str) -> requests.Response:
    """Sends the request, and follows redirects without reading their content."""
    for _ in range(1 + MOST_REDIRECTS):
        response = requests.get(
            url,
            headers={"Accept-Encoding": "identity"},
            auth=_without_credentials,
            timeout=(CONNECT_SECONDS, SILENCE_SECONDS),
            allow_redirects=False,
            stream=True,
        )
        if not response.is_redirect:
            break
        response.close()
        url = urljoin(url, response.headers["Location"])
        if urlsplit(url).scheme not in ("http", "https"):
            raise ValueError(f"a redirect must lead to http:// or https://. Received: {url!r}")
    if response.status_code != 200:
        response.close()
        raise ValueError(
            f"the server must answer with status 200. Received: {response.status_code}"
        )
    return response


def _without_credentials(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Returns the request unchanged.

    Without the argument `auth`, requests would read credentials from `~/.netrc`.
    """
    return request
