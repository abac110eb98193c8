"""The skip-gram model of word vectors."""

from typing import Any

import keras


@keras.saving.register_keras_serializable(package="keras_transformer")
class SkipGram(keras.Model):
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

    Call arguments:
        inputs: `{"centers": int (B,), "contexts": int (B, N)}`, one center word and N possible
            neighbors of each row.

    Returns:
        The logits, a float tensor `(B, N)`.

    Attributes:
        word_embedding: The `keras.layers.Embedding` with the vectors of the words as centers.
        context_embedding: The `keras.layers.Embedding` with the vectors of the words as neighbors.

    Source: Mikolov et al. 2013b, "Distributed Representations of Words and Phrases and their
    Compositionality". The initial values are those of the authors' program word2vec.
    """

    def __init__(self, vocabulary_size: int, d_model: int = 128, **kwargs: Any) -> None:
        bound = 0.5 / d_model
        uniform = keras.initializers.RandomUniform(-bound, bound)
        word_embedding, context_embedding = (
            keras.layers.Embedding(vocabulary_size, d_model, initializer, name=name)
            for name, initializer in (("word_embedding", uniform), ("context_embedding", "zeros"))
        )
        centers = keras.Input((), dtype="int32", name="centers")
        contexts = keras.Input((None,), dtype="int32", name="contexts")
        logits = keras.layers.Dot(axes=(2, 1), name="logits")(
            [context_embedding(contexts), word_embedding(centers)]
        )
        super().__init__({"centers": centers, "contexts": contexts}, logits, **kwargs)
        self.vocabulary_size = vocabulary_size
        self.d_model = d_model
        self.word_embedding = word_embedding
        self.context_embedding = context_embedding

    def get_config(self) -> dict[str, Any]:
        names = ("vocabulary_size", "d_model", "name", "trainable")
        return {name: getattr(self, name) for name in names}
