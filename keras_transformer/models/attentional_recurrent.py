"""The recurrent model with attention, as a functional Keras model."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers import AttentionalGRU, Dropout, padding_mask
from keras_transformer.layers.attention.cache import Cache
from keras_transformer.layers.base import Dense
from keras_transformer.models.seq2seq import Seq2Seq, ids_inputs, token_embeddings


@keras.saving.register_keras_serializable(package="keras_transformer")
class AttentionalRecurrentSeq2Seq(Seq2Seq):
    """Bidirectional recurrent encoder and recurrent decoder with additive attention.

    The encoder is a GRU in each direction. Before each step, the decoder attends to the states of
    the encoder. A layer with maxout units computes the output from the decoder's state, the context
    and the last token. Unlike in the paper, one matrix is both target embedding and output
    projection (Press and Wolf 2017), and dropout follows the embeddings, the encoder and the maxout
    layer.

    Example:

    >>> model = AttentionalRecurrentSeq2Seq(vocabulary_size=8000)
    >>> logits = model({"source_ids": source_ids, "target_ids": target_ids})     # (B, T, 8000)

    Args:
        vocabulary_size, target_vocabulary_size, pad_id, dtype: See `Transformer`.
        d_model: Width D of the decoder's state, and of the encoder's state in each direction.
            Defaults to 1000.
        d_embedding: Width E of the embeddings. Defaults to 620.
        dropout_rate: Dropout rate, in [0, 1). Defaults to 0.
        max_length: Maximum number of tokens of a sentence that `Translator` accepts or makes. The
            model itself has no limit. Defaults to 1024.

    For the call arguments and the result, see `Transformer`.

    Source: Bahdanau, Cho and Bengio 2015, Neural Machine Translation by Jointly Learning to Align
    and Translate.
    """

    architecture = "attentional_recurrent"
    presets = {
        "tiny": {"d_model": 512, "d_embedding": 256, "dropout_rate": 0.5},
        # Appendix A.2.3: RNNsearch.
        "base": {"d_model": 1000, "d_embedding": 620, "dropout_rate": 0.0},
    }

    def __init__(
        self,
        vocabulary_size: int,
        target_vocabulary_size: int | None = None,
        d_model: int = 1000,
        d_embedding: int = 620,
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
        forward, backward = (
            keras.layers.GRU(
                d_model,
                return_sequences=True,
                go_backwards=is_backward,
                use_cudnn=False,  # XLA, which compiles search, has no cuDNN.
                dtype=policy,
                name=name,
            )
            for name, is_backward in (("encoder_forward", False), ("encoder_backward", True))
        )
        bridge = Dense(d_model, activation="tanh", dtype=policy, name="bridge")
        decoder = AttentionalGRU(d_model, dtype=policy, name="decoder")
        output = Dense(2 * d_embedding, dtype=policy, name="output")

        inputs = ids_inputs()
        source_ids, target_ids = inputs["source_ids"], inputs["target_ids"]
        mask = padding_mask(source_ids, pad_id)
        x = dropout(source_embedding(source_ids))
        # The backward states are in the order of computation: the first token's state is the last.
        backward_states = ops.flip(backward(x, mask=mask), axis=1)
        state = bridge(backward_states[:, 0])
        memory = dropout(ops.concatenate([forward(x, mask=mask), backward_states], axis=-1))
        y = dropout(target_embedding(target_ids))
        decoded = decoder(y, initial_state=state, memory=memory, memory_padding_mask=mask)
        states = dropout(_maxout(output(ops.concatenate([decoded, y], axis=-1))))
        logits = target_embedding(states, reverse=True)
        super().__init__(inputs, logits, **kwargs)

        self.dtype_policy = policy
        self.vocabulary_size = vocabulary_size
        self.target_vocabulary_size = target_vocabulary_size
        self.d_model = d_model
        self.d_embedding = d_embedding
        self.dropout_rate = dropout_rate
        self.max_length = max_length
        self.pad_id = pad_id
        self.source_embedding = source_embedding
        self.target_embedding = target_embedding
        self.decoder = decoder
        self.output_layer = output
        self.states = states
        self._encode = keras.Function(source_ids, [memory, state])

    def init_cache(self, source_ids: Any, max_length: int | None, beam_size: Any = 1) -> Cache:
        """Encodes the sources and returns the cache (see `Searchable.init_cache`).

        The cache contains the decoder's state of each hypothesis, and the encoder's states.
        """
        memory, state = self._encode(source_ids)
        return Cache(
            beam=ops.repeat(state[:, None], beam_size, axis=1),
            sentence={
                "memory": memory,
                "projected_memory": self.decoder.attention.key_projection(memory),
                "padding_mask": padding_mask(source_ids, self.pad_id),
            },
        )

    def step(
        self,
        token_ids: Any,
        cache: Cache,
        position: Any,
        return_attention_weights: bool = False,
    ) -> tuple[Any, ...]:
        """Predicts the next token of every beam (see `Searchable.step`)."""
        sentence = cache.sentence
        x = self._embed_step(token_ids, cache)
        x = ops.reshape(x, (*ops.shape(token_ids), self.d_embedding))
        state, context, weights = self.decoder.step(
            x,
            cache.beam,
            sentence["projected_memory"],
            sentence["memory"],
            sentence["padding_mask"],
        )
        states = _maxout(self.output_layer(ops.concatenate([state, context, x], axis=-1)))
        logits = self._step_logits(ops.reshape(states, (-1, self.d_embedding)), token_ids, cache)
        cache = cache._replace(beam=state)
        if return_attention_weights:
            return logits, cache, ops.cast(weights, "float32")
        return logits, cache

    def source_attention(self, source_ids: Any, target_ids: Any) -> Any:
        """Returns the attention weights from target to source tokens (see `Searchable`).

        The weights, float32 `(B, N, T, S)`, are 0 for padding.
        """
        _, beams, length = ops.shape(target_ids)
        memory, state, mask = (
            ops.repeat(x, beams, axis=0)
            for x in (*self._encode(source_ids), padding_mask(source_ids, self.pad_id))
        )
        y = self.target_embedding(ops.reshape(target_ids, (-1, length)))
        _, weights = self.decoder(
            y,
            initial_state=state,
            memory=memory,
            memory_padding_mask=mask,
            return_attention_weights=True,
        )
        return self._source_attention(weights, source_ids, target_ids)


def _maxout(x: Any) -> Any:
    """Returns the maximum of each element of the first half of `x` and its partner in the second.

    Args:
        x: float tensor `(..., 2 * E)`.

    Returns:
        A float tensor `(..., E)`.

    Source: Goodfellow et al. 2013, Maxout Networks.
    """
    return ops.maximum(*ops.split(x, 2, axis=-1))
