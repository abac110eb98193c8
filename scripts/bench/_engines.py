"""The models and sizes that the benchmarks of training and of decoding share."""

import math
import time
from dataclasses import dataclass
from typing import Any

from _common import THREADS

PAD_ID, UNK_ID, BOS_ID, EOS_ID = range(4)
OURS = "keras_transformer"
MATRIX_SIZE = 2048
WIDE_SIZE = 8192  # 256 MiB, more than any cache


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model and of its batch."""

    name: str
    num_layers: int
    d_model: int
    num_heads: int
    d_ff: int
    vocabulary_size: int
    batch_size: int
    source_length: int
    target_length: int

    @property
    def target_tokens(self) -> int:
        return self.batch_size * self.target_length

    def multiply_adds(self, seen: int, hypotheses: int = 1) -> int:
        """Multiply-adds of the matrix products of a forward pass over the batch.

        The encoder reads each sentence once; each hypothesis pays for the decoder's layers and the
        projection of each token, and attention takes 2 D for each query and key, of QK^T and of
        the weights times V. Nothing else is counted.

        Args:
            seen: Pairs of a query and a key in one self-attention of the decoder.
            hypotheses: Of each sentence.
        """
        d, source, target = self.d_model, self.source_length, self.target_length
        feed_forward = 2 * d * self.d_ff
        encoder = source * (4 * d * d + feed_forward + 2 * source * d)
        memory = source * 2 * d * d  # cross-attention's keys and values
        decoder = target * (6 * d * d + feed_forward + 2 * source * d) + 2 * seen * d
        projection = target * d * self.vocabulary_size
        of_sentence = self.num_layers * (encoder + memory)
        of_hypothesis = self.num_layers * decoder + projection
        return self.batch_size * (of_sentence + hypotheses * of_hypothesis)


@dataclass(frozen=True)
class Setting:
    """An engine and how it is run.

    mixed_bfloat16 means float32 weights and products in bfloat16. `keeps_memory` is for
    `keep_freed_memory`, `shortlist` for a run's shortlist.
    """

    engine: str
    backend: str | None = None
    dtype: str = "float32"
    jit_compile: bool = False
    threads: int = THREADS
    shortlist: bool = False
    keeps_memory: bool = False

    def __str__(self) -> str:
        where = f" on {self.backend}" if self.backend else ""
        jit = ", jit" if self.jit_compile else ""
        shortlist = ", shortlist" if self.shortlist else ""
        return f"{self.engine}{where}, {self.dtype}{jit}{shortlist}, {self.threads} threads"


def new_transformer(sizes: Sizes, **options: Any) -> Any:
    from keras_transformer.models import Transformer

    return Transformer(
        sizes.vocabulary_size,
        num_layers=sizes.num_layers,
        d_model=sizes.d_model,
        num_heads=sizes.num_heads,
        d_ff=sizes.d_ff,
        **options,
    )


def keras_hub_model(
    sizes: Sizes, positions: Any, dropout_rate: float = 0.0, **of_layer: Any
) -> Any:
    """The same model from KerasHub's layers, which have the names that `KerasHubSearch` knows."""
    import keras
    from keras_hub import layers as hub

    of_layer |= {"intermediate_dim": sizes.d_ff, "num_heads": sizes.num_heads}
    of_layer["dropout"] = dropout_rate
    normal = keras.initializers.RandomNormal(stddev=sizes.d_model**-0.5)
    embedding = hub.ReversibleEmbedding(
        sizes.vocabulary_size, sizes.d_model, embeddings_initializer=normal, name="embedding"
    )
    dropout = keras.layers.Dropout(dropout_rate)
    source = keras.Input((sizes.source_length,), dtype="int32")
    target = keras.Input((sizes.target_length,), dtype="int32")
    mask = keras.ops.not_equal(source, PAD_ID)
    memory, x = (dropout(keras_hub_embed(embedding, positions, ids)) for ids in (source, target))
    for i in range(sizes.num_layers):
        memory = hub.TransformerEncoder(**of_layer, name=f"encoder_{i}")(memory, padding_mask=mask)
    for i in range(sizes.num_layers):
        layer = hub.TransformerDecoder(**of_layer, name=f"decoder_{i}")
        x = layer(x, memory, encoder_padding_mask=mask)
    return keras.Model([source, target], embedding(x, reverse=True))


def keras_hub_embed(embedding: Any, positions: Any, ids: Any, start: Any = 0) -> Any:
    vectors = embedding(ids) * math.sqrt(embedding.output_dim)
    return vectors + positions(vectors, start_index=start)


def matmul_flops(repeats: int) -> float:
    """Operations per second of the backend's best product of two float32 matrices."""
    shape = (MATRIX_SIZE, MATRIX_SIZE)
    return 2 * MATRIX_SIZE**3 / _seconds_of_product(shape, shape, repeats)


def bytes_per_s(repeats: int) -> float:
    """Bytes per second that the backend's best product of a vector and a large matrix reads."""
    shape = (WIDE_SIZE, WIDE_SIZE)
    return 4 * WIDE_SIZE**2 / _seconds_of_product((1, WIDE_SIZE), shape, repeats)


def _seconds_of_product(left: tuple[int, int], right: tuple[int, int], repeats: int) -> float:
    """Of the fastest of several, after a first one."""
    from keras import ops

    matrices = [ops.ones(shape) for shape in (left, right)]
    seconds = []
    for _ in range(1 + repeats):
        start = time.perf_counter()
        ops.convert_to_numpy(ops.matmul(*matrices)[0, 0])  # JAX waits only so
        seconds.append(time.perf_counter() - start)
    return min(seconds)
