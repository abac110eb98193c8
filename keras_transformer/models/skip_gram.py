"""The skip-gram model of word vectors."""

from typing import Any

import keras

from keras_transformer.errors import check_sizes
from keras_transformer.layers.token_embedding import TokenEmbedding
from keras_transformer.models.base import ConfiguredModel, compute_policy


@keras.saving.register_keras_serializable(package="keras_transformer")
class SkipGram(ConfiguredModel):
    """Learns word vectors by predicting the neighbors of each word (Mikolov et al. 2013b, §2).

    A word has two vectors: one as the center of a window, and one as a neighbor ("context"). The
    logit of a pair is the dot product of the two. With negative sampling (§2.2), the model learns
    to tell pairs of the text from pairs with a random word. `skip_gram_batches` makes both.

    Example:

    ```python
    model = SkipGram(vocabulary_size=8_000, d_model=128)
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
    fit(model, skip_gram_batches(sentences, 8_000), "runs/vectors", steps=5_000)
    model.word_embedding.embeddings  # (8000, 128): the word vectors
    ```

    Args:
        vocabulary_size: Number of words V.
        d_model: Width D of the vectors. Defaults to 128.
        dtype: Dtype policy of all layers. Defaults to the global policy.

    Call arguments:
        inputs: `{"centers": int (B,), "contexts": int (B, N)}`, one center word and N possible
            neighbors of each row.

    Returns:
        The logits, a float tensor `(B, N)` in the compute dtype.

    Attributes:
        word_embedding: The `TokenEmbedding` with the vectors of the words as centers.
        context_embedding: The `TokenEmbedding` with the vectors of the words as neighbors.

    Raises:
        ValueError: If a size is less than 1, or if `dtype` is float64.

    Source: Mikolov et al. 2013b, "Distributed Representations of Words and Phrases and their
    Compositionality". The initial values are those of the authors' program word2vec.
    """

    rows_have_classes = False

    def __init__(
        self, vocabulary_size: int, d_model: int = 128, dtype: Any = None, **kwargs: Any
    ) -> None:
        check_sizes(d_model=d_model)
        policy = compute_policy(dtype)
        bound = 0.5 / d_model
        uniform = keras.initializers.RandomUniform(-bound, bound)
        word_embedding, context_embedding = (
            TokenEmbedding(vocabulary_size, d_model, False, initializer, dtype=policy, name=name)
            for name, initializer in (("word_embedding", uniform), ("context_embedding", "zeros"))
        )
        centers = keras.Input((), dtype="int32", name="centers")
        contexts = keras.Input((None,), dtype="int32", name="contexts")
        logits = keras.layers.Dot(axes=(2, 1), dtype=policy, name="logits")(
            [context_embedding(contexts), word_embedding(centers)]
        )
        super().__init__({"centers": centers, "contexts": contexts}, logits, **kwargs)
        self.dtype_policy = policy
        self.vocabulary_size = vocabulary_size
        self.d_model = d_model
        self.word_embedding = word_embedding
        self.context_embedding = context_embedding
