"""Downloads models of the Hugging Face hub, each file once, into Keras's folder."""

from pathlib import Path
from typing import Any

from keras_transformer._files import keras_home

PREFIX = "hf://"
_WEIGHTS = ("model.safetensors", "pytorch_model.bin", "model.bin")  # the first that exists
_FILES = (
    *("config.json", "generation_config.json", "tokenizer_config.json", "README.md"),
    *("source.spm", "target.spm", "sentencepiece.model", "vocab.json", "target_vocab.json"),
    *("shared_vocabulary.json", "shared_vocabulary.txt", "source_vocabulary.json"),
    *("source_vocabulary.txt", "target_vocabulary.json", "target_vocabulary.txt"),
)


def download(source: str, revision: str | None = None) -> Path:
    """Downloads a model such as "hf://org/name" once. The folder has the name of its revision.

    Raises an error, see `reading`, if huggingface_hub is missing, or there is no such model.
    """
    name = source.removeprefix(PREFIX)
    try:
        import huggingface_hub as hub
    except ImportError:
        raise ValueError(
            "it needs huggingface_hub: pip install 'keras3-transformer[hub]'"
        ) from None
    cache = keras_home() / "keras_transformer" / "hub"
    found: dict[str, Path] = {}
    for file in (*_WEIGHTS, *_FILES):
        if file in _WEIGHTS and found:
            continue
        try:
            kept: Any = hub.try_to_load_from_cache(name, file, cache, revision)
            if kept is None:
                kept = hub.hf_hub_download(name, file, revision=revision, cache_dir=cache)
        except hub.errors.EntryNotFoundError:
            continue
        if isinstance(kept, str):
            found[file] = Path(kept)
    if not found:
        raise ValueError("it has none of the files of a translation model")
    return next(iter(found.values())).parent
