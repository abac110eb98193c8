"""The recurrent model with a fixed context vector, as a functional Keras model."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers import Dropout, padding_mask
from keras_transformer.layers.attention.cache import Cache
from keras_transformer.layers.base import Dense
from keras_transformer.models.seq2seq import Seq2Seq, ids_inputs, token_embeddings


@keras.saving.register_keras_serializable(package="keras_transformer")
class RecurrentSeq2Seq(Seq2Seq):
    """LSTM encoder and LSTM decoder. The encoder's last state is all that the decoder reads.

    The encoder reads the source backwards (§3.3), so that the first source words are close to the
    first target words. The model has no attention: the state has the same size for a source of any
    length. Unlike in the paper, one matrix is both target embedding and output projection (Press
    and Wolf 2017), and dropout follows the embeddings and each layer.

    Example:

    >>> model = RecurrentSeq2Seq(vocabulary_size=8000)
    >>> logits = model({"source_ids": source_ids, "target_ids": target_ids})     # (B, T, 8000)

    Args:
        vocabulary_size, target_vocabulary_size, pad_id, dtype: See `Transformer`.
        num_layers: Number of layers of the encoder, and of the decoder. Defaults to 4.
        d_model: Width D of the states. Defaults to 1000.
        d_embedding: Width E of the embeddings. Defaults to 1000.
        dropout_rate: Dropout rate, in [0, 1). Defaults to 0.
        max_length: Maximum number of tokens of a sentence that `Translator` accepts or makes. The
            model itself has no limit. Defaults to 1024.

    For the call arguments and the result, see `Transformer`.

    Source: Sutskever, Vinyals and Le 2014, Sequence to Sequence Learning with Neural Networks.
    """

    architecture = "recurrent"
    presets = {
        "tiny": {"num_layers": 2, "d_model": 512, "d_embedding": 256, "dropout_rate": 0.5},
        # §3.4.
        "base": {"num_layers": 4, "d_model": 1000, "d_embedding": 1000, "dropout_rate": 0.0},
    }

    def __init__(
        self,
        vocabulary_size: int,
        target_vocabulary_size: int | None = None,
        num_layers: int = 4,
        d_model: int = 1000,
        d_embedding: int = 1000,
        dropout_rate: float = 0.0,
        max_length: int = 1024,
        pad_id: int = 0,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        policy = keras.dtype_policies.get(dtype)
        source_embedding, target_embedding = token_embeddings(
            vocabulary_size, target_vocabulary_size, pad_id, d_embedding, policy
        )
        dropout = Dropout(dropout_rate, dtype=policy, name="dropout")
        encoder, decoder = (
            [
                keras.layers.LSTM(
                    d_model,
                    return_sequences=True,
                    return_state=True,
                    use_cudnn=False,  # XLA, which compiles search, has no cuDNN.
                    dtype=policy,
                    name=f"{side}_layer_{i}",
                )
                for i in range(1, num_layers + 1)
            ]
            for side in ("encoder", "decoder")
        )
        output = Dense(d_embedding, dtype=policy, name="output")

        inputs = ids_inputs()
        source_ids, target_ids = inputs["source_ids"], inputs["target_ids"]
        mask = padding_mask(source_ids, pad_id)
        x, context = dropout(source_embedding(_reversed(source_ids, mask))), []
        for layer in encoder:
            x, *state = layer(x, mask=mask)
            x = dropout(x)
            context.append(state)
        y = dropout(target_embedding(target_ids))
        for layer, state in zip(decoder, context, strict=True):
            y = dropout(layer(y, initial_state=state)[0])
        states = output(y)
        logits = target_embedding(states, reverse=True)
        super().__init__(inputs, logits, **kwargs)

        self.dtype_policy = policy
        self.vocabulary_size = vocabulary_size
        self.target_vocabulary_size = target_vocabulary_size
        self.num_layers = num_layers
        self.d_model = d_model
        self.d_embedding = d_embedding
        self.dropout_rate = dropout_rate
        self.max_length = max_length
        self.pad_id = pad_id
        self.source_embedding = source_embedding
        self.target_embedding = target_embedding
        self.decoder_layers = decoder
        self.output_layer = output
        self.states = states
        self._encode = keras.Function(source_ids, context)

    def init_cache(self, source_ids: Any, max_length: int | None, beam_size: Any = 1) -> Cache:
        """Encodes the sources and returns the cache (see `Searchable.init_cache`).

        The cache contains the two states of each decoder layer for each hypothesis.
        """
        context = self._encode(source_ids)
        return Cache(
            beam=keras.tree.map_structure(
                lambda x: ops.repeat(x[:, None], beam_size, axis=1), context
            ),
            sentence={},
        )

    def step(self, token_ids: Any, cache: Cache, position: Any) -> tuple[Any, Cache]:
        """Predicts the next token of every beam (see `Searchable.step`)."""
        shape = (*ops.shape(token_ids), self.d_model)
        x, new = self._embed_step(token_ids, cache)[:, 0], []
        for layer, state in zip(self.decoder_layers, cache.beam, strict=True):
            x, own = layer.cell(x, [ops.reshape(part, (-1, self.d_model)) for part in state])
            new.append([ops.reshape(part, shape) for part in own])
        logits = self._step_logits(self.output_layer(x), token_ids, cache)
        return logits, cache._replace(beam=new)


def _reversed(ids: Any, mask: Any) -> Any:
    """Reverses the real tokens of each row of `ids` `(B, S)`. Padding stays at the end."""
    positions = ops.cumsum(ops.ones_like(ids), axis=1) - 1
    last = ops.sum(ops.cast(mask, "int32"), axis=1, keepdims=True) - 1
    return ops.take_along_axis(ids, ops.where(mask, last - positions, positions), axis=1)
