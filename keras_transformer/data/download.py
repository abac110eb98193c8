"""Downloads files and verifies their SHA-256."""

from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

from keras_transformer._files import atomic_write, keras_home, sha256_of
from keras_transformer._progress import Bar
from keras_transformer.errors import UserError

_SILENCE_SECONDS = 60.0


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
        UserError: If the download fails, if the server is silent for a minute, or if the SHA-256 of
            the file is not `sha256`. After an error, the cache is unchanged.
    """
    path = keras_home() / "keras_transformer" / sha256[:16] / name
    url = f"{folder_url.rstrip('/')}/{quote(name)}"
    try:
        if not path.is_file() or sha256_of(path) != sha256:
            with atomic_write(path) as partial:
                _fetch(url, partial)
                if (received := sha256_of(partial)) != sha256:
                    raise ValueError(f"the SHA-256 must be {sha256}. Received: {received}")
    except Exception as error:  # urllib and the system raise different errors
        message = (
            f"{url} cannot be fetched (for local files, use --data-dir, or set data.directory of "
            f"the recipe): {error}"
        )
        raise UserError(" ".join(message.split())) from error
    return path


def _fetch(url: str, path: Path) -> None:
    with path.open("wb") as file, urlopen(url, timeout=_SILENCE_SECONDS) as response:
        title, size = url.rpartition("/")[2], response.length  # None if the server does not tell
        with Bar(title, total=size, unit="B", unit_scale=True) as bar:
            while chunk := response.read(64 * 1024):
                bar.update(file.write(chunk))
