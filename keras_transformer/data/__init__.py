"""Reads text files, encodes their text and makes batches."""

from keras_transformer._backend import fit_data
from keras_transformer.data.batch_plan import BatchPlan, Shard, evaluation_batches, mask_tokens
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
    "mask_tokens",
    "read_lines",
    "read_parallel",
]
