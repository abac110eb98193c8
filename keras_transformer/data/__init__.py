"""Reads text files, encodes their text and makes batches."""

from typing import TYPE_CHECKING

from keras_transformer._lazy import lazy_names
from keras_transformer.data.batch_plan import BatchPlan, Shard, evaluation_batches
from keras_transformer.data.parallel_text import read_parallel
from keras_transformer.data.text_files import CorpusError, read_lines
from keras_transformer.data.token_masks import mask_tokens
from keras_transformer.data.token_store import TokenStore
from keras_transformer.data.tokenizer import Tokenizer

if TYPE_CHECKING:
    from keras_transformer._backend.fit_data import fit_data
    from keras_transformer.data.parallel_dataset import ParallelDataset

__all__ = [
    "BatchPlan",
    "CorpusError",
    "ParallelDataset",
    "Shard",
    "TokenStore",
    "Tokenizer",
    "evaluation_batches",
    "fit_data",
    "mask_tokens",
    "read_lines",
    "read_parallel",
]

__getattr__ = lazy_names(
    __name__, {"._backend.fit_data": "fit_data", "parallel_dataset": "ParallelDataset"}
)
