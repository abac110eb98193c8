"""Reads text files, encodes their text and makes batches.

Each module is imported when one of its names is first used (PEP 562). So translation, which only
needs to read lines, starts faster.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_transformer._backend.fit_data import fit_data
    from keras_transformer.data.batch_plan import BatchPlan, Shard, evaluation_batches
    from keras_transformer.data.corpus import CorpusError, read_lines, read_parallel
    from keras_transformer.data.token_store import TokenStore
    from keras_transformer.data.tokenizer import Tokenizer

__all__ = [
    "BatchPlan",
    "CorpusError",
    "Shard",
    "TokenStore",
    "Tokenizer",
    "evaluation_batches",
    "fit_data",
    "read_lines",
    "read_parallel",
]

_MODULES = {
    "BatchPlan": "data.batch_plan",
    "CorpusError": "data.corpus",
    "Shard": "data.batch_plan",
    "TokenStore": "data.token_store",
    "Tokenizer": "data.tokenizer",
    "evaluation_batches": "data.batch_plan",
    "fit_data": "_backend.fit_data",
    "read_lines": "data.corpus",
    "read_parallel": "data.corpus",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"keras_transformer.{_MODULES[name]}"), name)
