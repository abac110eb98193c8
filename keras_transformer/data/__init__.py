"""Reads text files, encodes their text and makes batches.

Each module is imported when one of its public names is first used. So programs that only read
lines start faster.
"""

from typing import TYPE_CHECKING

from keras_transformer._lazy import lazy_names

if TYPE_CHECKING:
    from keras_transformer._backend.fit_data import fit_data
    from keras_transformer.data.batch_plan import BatchPlan, Shard, evaluation_batches
    from keras_transformer.data.corpus import CorpusError, read_lines, read_parallel
    from keras_transformer.data.masking import mask_tokens
    from keras_transformer.data.skip_gram import skip_gram_batches
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
    "skip_gram_batches",
]

__getattr__ = lazy_names(
    __name__,
    {
        "BatchPlan": "keras_transformer.data.batch_plan",
        "CorpusError": "keras_transformer.data.corpus",
        "Shard": "keras_transformer.data.batch_plan",
        "TokenStore": "keras_transformer.data.token_store",
        "Tokenizer": "keras_transformer.data.tokenizer",
        "evaluation_batches": "keras_transformer.data.batch_plan",
        "fit_data": "keras_transformer._backend.fit_data",
        "mask_tokens": "keras_transformer.data.masking",
        "read_lines": "keras_transformer.data.corpus",
        "read_parallel": "keras_transformer.data.corpus",
        "skip_gram_batches": "keras_transformer.data.skip_gram",
    },
)
