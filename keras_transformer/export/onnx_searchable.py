"""Lets `Translator` search with an exported ONNX model."""

from pathlib import Path
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.export.onnx_program import OnnxModel
from keras_transformer.layers.attention.cache import Cache
from keras_transformer.translation.base_translator import Overlong
from keras_transformer.translation.translator import Translator


def onnx_translator(
    directory: str | Path,
    options: SearchOptions | None = None,
    overlong: Overlong = "split",
    tokens_per_batch: int | None = None,
    num_threads: int = 0,
) -> Translator:
    """Returns a `Translator` whose model runs in onnxruntime, on any backend.

    It has all search options except the coverage penalty, also those that `translate.py` in the
    folder lacks, such as n-best lists and sampling, but neither alignments nor shortlists.

    Example:

    >>> onnx_translator("exports/quickstart/onnx").translate(["twenty-six"])

    Args:
        directory: A folder written by `export_onnx`.
        options: The search options. Defaults to None, which means the exported options.
        overlong: As for `Translator`. Defaults to `"split"`.
        tokens_per_batch: As for `Translator`. Defaults to None.
        num_threads: Number of threads per operation. Defaults to 0, which means one thread per
            core.

    Raises:
        OSError: If the folder does not exist.
    """
    model = OnnxSearchable(directory, num_threads)
    config = model.config
    options = options or SearchOptions(
        beam_size=config["beam_size"],
        length_penalty=config["length_penalty"],
        max_length=config["search_max_length"],
    )
    tokenizer = Tokenizer.load(Path(directory) / "tokenizer")
    return Translator(model, tokenizer, options, overlong, tokens_per_batch)


class OnnxSearchable:
    """An exported ONNX model as a `Searchable` (`models/protocol.py`).

    Args:
        directory: A folder written by `export_onnx`.
        num_threads: As in `onnx_translator`.
    """

    compiles = False  # Search runs its loop in Python.
    variables = ()

    def __init__(self, directory: str | Path, num_threads: int = 0) -> None:
        self._model = OnnxModel(directory, num_threads)
        self.config = self._model.config
        self.max_length, self.pad_id = self.config["max_length"], self.config["pad_id"]
        self.vocabulary_size = self.config["source_vocabulary_size"]
        self.target_vocabulary_size = self.config["target_vocabulary_size"]

    def init_cache(self, source_ids: Any, max_length: int | None, beam_size: int = 1) -> Cache:
        """Returns the cache. Search reorders only the parents of the hypotheses in it.

        `step.onnx` then reorders the keys and values.
        """
        source_ids = ops.convert_to_numpy(source_ids)
        parents = np.zeros((len(source_ids), beam_size), "int32")
        return Cache(beam=parents, sentence=self._model.encode(source_ids))

    def step(self, token_ids: Any, cache: Cache, position: Any) -> tuple[Any, Cache]:
        """Returns the logits, float32 `(B, N, V)`, and the cache."""
        state = {name: ops.convert_to_numpy(x) for name, x in cache.sentence.items()}
        token_ids, parents = map(ops.convert_to_numpy, (token_ids, cache.beam))
        (logits,), state = self._model.step(token_ids, parents, state, ["logits"])
        own = np.broadcast_to(np.arange(parents.shape[1], dtype="int32"), parents.shape)
        return logits, Cache(beam=own, sentence=state)
