"""Downloads models of the Hugging Face hub, each file once, into Keras's folder."""

import re
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer._files import keras_home
from keras_transformer.errors import UserError

PREFIX = "hf://"
# The first of each tuple that exists is downloaded.
_FILES = (
    ("config.json",),
    ("model.safetensors", "pytorch_model.bin", "model.bin"),
    *[
        (name,)
        for name in (
            *("generation_config.json", "tokenizer_config.json", "README.md"),
            *("source.spm", "target.spm", "sentencepiece.model", "vocab.json", "target_vocab.json"),
            *("shared_vocabulary.json", "shared_vocabulary.txt", "source_vocabulary.json"),
            *("source_vocabulary.txt", "target_vocabulary.json", "target_vocabulary.txt"),
        )
    ],
)


class Downloaded(NamedTuple):
    """The folder of downloaded files, and the hub's name of their revision."""

    folder: Path
    revision: str


def download(source: str, revision: str | None = None) -> Downloaded:
    """Downloads the files of a model such as "hf://org/name" that are not in the cache.

    Raises `UserError` if huggingface_hub is not installed, or if there is no such model.
    """
    name = source.removeprefix(PREFIX)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UserError(f"a model of the hub is hf://ORGANIZATION/NAME. Received: {source}")
    try:
        import huggingface_hub as hub
    except ImportError:
        raise UserError(
            f"{source} needs huggingface_hub: pip install 'keras3-transformer[hub]'"
        ) from None
    cache = keras_home() / "keras_transformer" / "hub"
    found: list[Path] = []
    for alternatives in _FILES:
        for file in alternatives:
            kept: Any = hub.try_to_load_from_cache(name, file, cache, revision)
            if kept is None:
                try:
                    kept = hub.hf_hub_download(name, file, revision=revision, cache_dir=cache)
                except hub.errors.EntryNotFoundError:
                    continue
                except (hub.errors.HfHubHTTPError, OSError, ValueError) as error:
                    reason = " ".join(str(error).split())[:200]
                    raise UserError(f"{source}: {file} cannot be downloaded: {reason}") from error
            if isinstance(kept, str):
                found.append(Path(kept))
                break
    if not found:
        raise UserError(f"{source} has none of the files of a translation model")
    return Downloaded(found[0].parent, found[0].parent.name)
