"""Public files, recognised by their checksum."""

import hashlib
from pathlib import Path

from keras_transformer.errors import UserError


def fetch(url: str, sha256: str, data_dir: str | Path | None = None) -> Path:
    """Find a public file in a folder, or download it once.

    Example:

    ```python
    path = fetch("https://example.org/corpus/train.en.gz", sha256="9f86d081884c7d65...")
    ```

    Args:
        url: address of the file; the last part of it is its name.
        sha256: its SHA-256 in hex.
        data_dir: folder that holds the file, directly or in a folder of it; nothing is downloaded
            then. None downloads to Keras's cache.

    Returns:
        Path of the file, whose checksum is right.

    Raises:
        UserError: if the file is not there, cannot be downloaded or has another checksum.
    """
    name = url.rpartition("/")[2]
    if data_dir is None:
        return _download(url, name, sha256)
    candidates = sorted(path for path in Path(data_dir).rglob(name) if path.is_file())
    if not candidates:
        raise UserError(f"no file {name} in {data_dir}")
    for path in candidates:
        if _sha256_of(path) == sha256:
            return path
    raise UserError(f"{candidates[0]} is not the file of {url}: its SHA-256 is not {sha256}")


def _download(url: str, name: str, sha256: str) -> Path:
    import keras

    try:
        path = keras.utils.get_file(
            name, url, file_hash=sha256, cache_subdir=f"keras_transformer/{sha256[:16]}"
        )
    except Exception as error:  # get_file raises a bare Exception if the download fails
        raise UserError(
            f"{url} cannot be fetched; get it by other means and name its folder. Reason: {error}"
        ) from error
    return Path(path)


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
