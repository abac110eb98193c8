"""The models that translated before the Transformer, as architectures of recipes.

recurrent              an LSTM encoder and decoder with a fixed context vector (Sutskever et al.
                       2014, Sequence to Sequence Learning with Neural Networks)
attentional_recurrent  GRUs and additive attention (Bahdanau, Cho and Bengio 2015, Neural Machine
                       Translation by Jointly Learning to Align and Translate)
convolutional          convolutions with gates, and attention in each decoder layer (Gehring et al.
                       2017, Convolutional Sequence to Sequence Learning)

This program is the command line `keras-transformer`, which then knows these architectures too:

    python recipes/before_transformers.py train multi30k_de_en_recurrent
    python recipes/before_transformers.py translate runs/multi30k_de_en_recurrent
    python recipes/before_transformers.py evaluate runs/multi30k_de_en_recurrent

It is also an example of how a program adds an architecture of its own. Hardware, time and score
are in the recipes multi30k_de_en_*.yaml. In Python, `import before_transformers` in this folder.

In saved models, the classes have the package name "before_transformers".
"""

import math
from typing import Any

from keras_transformer_cli import choose_backend, main

if __name__ == "__main__":
    choose_backend()  # before Keras is imported

import keras  # noqa: E402
from keras import layers, ops  # noqa: E402

from keras_transformer.layers import (  # noqa: E402
    Dropout,
    LearnedPositionalEncoding,
    checkpointable,
    padding_mask,
    record_attention,
    scaled_dot_product_attention,
)
from keras_transformer.models import (  # noqa: E402
    Cache,
    Seq2Seq,
    ids_inputs,
    register_architecture,
    token_embeddings,
)

# 1. The recurrent model with a fixed context vector.


@register_architecture(
    "recurrent",
    presets={
        "tiny": {"num_layers": 2, "d_model": 512, "d_embedding": 256, "dropout_rate": 0.5},
        # §3.4.
        "base": {"num_layers": 4, "d_model": 1000, "d_embedding": 1000, "dropout_rate": 0.0},
    },
)
@keras.saving.register_keras_serializable(package="before_transformers")
class RecurrentSeq2Seq(Seq2Seq):
    """LSTM encoder and LSTM decoder. The encoder's last state is all that the decoder reads.

    The encoder reads the source backwards (§3.3), so that the first source words are close to the
    first target words. The model has no attention: the state has the same size for a source of any
    length. Unlike in the paper, one matrix is both target embedding and output projection (Press
    and Wolf 2017), and dropout follows the embeddings and each layer.

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
                layers.LSTM(
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
        output = layers.Dense(d_embedding, dtype=policy, name="output")

        inputs = ids_inputs()
        source_ids, target_ids = inputs["source_ids"], inputs["target_ids"]
        mask = padding_mask(source_ids, pad_id)
        x, context = dropout(source_embedding(reversed_tokens(source_ids, mask))), []
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
        x, new = self.embed_step(token_ids, cache)[:, 0], []
        for layer, state in zip(self.decoder_layers, cache.beam, strict=True):
            x, own = layer.cell(x, [ops.reshape(part, (-1, self.d_model)) for part in state])
            new.append([ops.reshape(part, shape) for part in own])
        logits = self.step_logits(self.output_layer(x), token_ids, cache)
        return logits, cache._replace(beam=new)


def reversed_tokens(ids: Any, mask: Any) -> Any:
    """Reverses the real tokens of each row of `ids` `(B, S)`. Padding stays at the end."""
    positions = ops.cumsum(ops.ones_like(ids), axis=1) - 1
    last = ops.sum(ops.cast(mask, "int32"), axis=1, keepdims=True) - 1
    return ops.take_along_axis(ids, ops.where(mask, last - positions, positions), axis=1)


# 2. The recurrent model with attention.


class AttentionalGRU(layers.Layer):
    """GRU (gated recurrent unit) that attends to the encoder's states before each step.

    From its state q before the step, additive attention with the scores v^T tanh(W_q q + W_k k)
    computes the context, a weighted mean of the encoder's states k. The GRU reads the input and the
    context. Its reset gate is applied after the matrix product, as in cuDNN and PyTorch.

    Args:
        units: Width U of the state, and of the hidden layer of the attention.

    Call arguments:
        x: float tensor `(B, T, D)`.
        initial_state: float tensor `(B, U)`.
        memory: float tensor `(B, S, D_m)`, the encoder's states.
        memory_padding_mask: bool tensor `(B, S)`, True = real source token.

    Returns:
        A tuple of a float tensor `(B, T, U + D_m)`, the state after each step and the context of
        the step, and the attention weights `(B, T, S)`.

    Source: Bahdanau, Cho and Bengio 2015, appendix A.1.2 and A.2.2.
    """

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        # XLA cannot compile the gradient of a loop of TensorFlow without a maximum number of steps.
        self.supports_jit = keras.config.backend() != "tensorflow"
        self.units = units
        options = {"dtype": self.dtype_policy}
        self.query_projection = layers.Dense(units, use_bias=False, name="query", **options)
        self.key_projection = layers.Dense(units, name="key", **options)
        self.score_projection = layers.Dense(1, use_bias=False, name="score", **options)
        self.cell = layers.GRUCell(units, name="cell", **options)

    def build(self, x_shape: Any, initial_state_shape: Any, memory_shape: Any) -> None:
        self.query_projection.build((None, None, self.units))
        self.key_projection.build(memory_shape)
        self.score_projection.build((None, None, None, self.units))
        self.cell.build((None, x_shape[-1] + memory_shape[-1]))

    def call(
        self, x: Any, initial_state: Any, memory: Any, memory_padding_mask: Any
    ) -> tuple[Any, Any]:
        keys = self.key_projection(memory)

        def advance(carried: tuple[Any, Any, Any], inputs: Any) -> tuple[Any, Any]:
            carried = self.step(inputs[:, None], carried[0], keys, memory, memory_padding_mask)
            return carried, carried

        state = ops.cast(initial_state, self.compute_dtype)[:, None]
        begin = (state, ops.zeros_like(memory[:, :1]), ops.zeros_like(memory[:, None, :, 0]))
        _, found = ops.scan(advance, begin, ops.swapaxes(x, 0, 1))
        states, contexts, weights = (ops.swapaxes(x[:, :, 0], 0, 1) for x in found)
        record_attention(self, "cross", weights)
        return ops.concatenate([states, contexts], axis=-1), weights

    def step(
        self, x: Any, state: Any, keys: Any, memory: Any, memory_padding_mask: Any
    ) -> tuple[Any, Any, Any]:
        """Computes one step of N independent sequences per memory, such as the beams of a search.

        Args:
            x: float tensor `(B, N, D)`.
            state: float tensor `(B, N, U)`, the state before the step.
            keys: float tensor `(B, S, U)`, the result of `key_projection`.
            memory: float tensor `(B, S, D_m)`.
            memory_padding_mask: bool tensor `(B, S)`, True = real source token.

        Returns:
            A tuple of the new state `(B, N, U)`, the context `(B, N, D_m)` and the attention
            weights `(B, N, S)`.
        """
        hidden = ops.tanh(self.query_projection(state)[:, :, None] + keys[:, None])  # (B, N, S, U)
        scores = ops.cast(ops.squeeze(self.score_projection(hidden), -1), "float32")
        scores = ops.where(memory_padding_mask[:, None], scores, -1e9)
        weights = ops.cast(ops.softmax(scores, axis=-1), memory.dtype)
        context = ops.matmul(weights, memory)
        inputs = ops.concatenate([x, context], axis=-1)
        flat = ops.reshape(inputs, (-1, inputs.shape[-1]))
        new, _ = self.cell(flat, [ops.reshape(state, (-1, self.units))])
        return ops.reshape(new, ops.shape(state)), context, weights


@register_architecture(
    "attentional_recurrent",
    presets={
        "tiny": {"d_model": 512, "d_embedding": 256, "dropout_rate": 0.5},
        # Appendix A.2.3: RNNsearch.
        "base": {"d_model": 1000, "d_embedding": 620, "dropout_rate": 0.0},
    },
)
@keras.saving.register_keras_serializable(package="before_transformers")
class AttentionalRecurrentSeq2Seq(Seq2Seq):
    """Bidirectional recurrent encoder and recurrent decoder with additive attention.

    The encoder is a GRU in each direction. Before each step, the decoder attends to the states of
    the encoder. A layer with maxout units computes the output from the decoder's state, the context
    and the last token. Unlike in the paper, one matrix is both target embedding and output
    projection (Press and Wolf 2017), and dropout follows the embeddings, the encoder and the maxout
    layer.

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
            layers.GRU(
                d_model,
                return_sequences=True,
                go_backwards=is_backward,
                use_cudnn=False,  # XLA, which compiles search, has no cuDNN.
                dtype=policy,
                name=name,
            )
            for name, is_backward in (("encoder_forward", False), ("encoder_backward", True))
        )
        bridge = layers.Dense(d_model, activation="tanh", dtype=policy, name="bridge")
        decoder = AttentionalGRU(d_model, dtype=policy, name="decoder")
        output = layers.Dense(2 * d_embedding, dtype=policy, name="output")

        inputs = ids_inputs()
        source_ids, target_ids = inputs["source_ids"], inputs["target_ids"]
        mask = padding_mask(source_ids, pad_id)
        x = dropout(source_embedding(source_ids))
        # The backward states are in the order of computation: the first token's state is the last.
        backward_states = ops.flip(backward(x, mask=mask), axis=1)
        state = bridge(backward_states[:, 0])
        memory = dropout(ops.concatenate([forward(x, mask=mask), backward_states], axis=-1))
        y = dropout(target_embedding(target_ids))
        decoded, _ = decoder(y, initial_state=state, memory=memory, memory_padding_mask=mask)
        states = dropout(maxout(output(ops.concatenate([decoded, y], axis=-1))))
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
                "keys": self.decoder.key_projection(memory),
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
        x = self.embed_step(token_ids, cache)
        x = ops.reshape(x, (*ops.shape(token_ids), self.d_embedding))
        state, context, weights = self.decoder.step(
            x,
            cache.beam,
            sentence["keys"],
            sentence["memory"],
            sentence["padding_mask"],
        )
        states = maxout(self.output_layer(ops.concatenate([state, context, x], axis=-1)))
        logits = self.step_logits(ops.reshape(states, (-1, self.d_embedding)), token_ids, cache)
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
        _, weights = self.decoder(y, initial_state=state, memory=memory, memory_padding_mask=mask)
        return self.without_padding(weights, source_ids, target_ids)


def maxout(x: Any) -> Any:
    """Returns the maximum of each element of the first half of `x` and its partner in the second.

    Args:
        x: float tensor `(..., 2 * E)`.

    Returns:
        A float tensor `(..., E)`.

    Source: Goodfellow et al. 2013, Maxout Networks.
    """
    return ops.maximum(*ops.split(x, 2, axis=-1))


# 3. The convolutional model.

# The sum of two inputs of equal variance, times this factor, has the variance of one input.
HALF_VARIANCE = math.sqrt(0.5)
# Initial standard deviation of the embeddings (§3.5). `TokenEmbedding` has 1.
EMBEDDING_SCALE = 0.1


class ConvolutionalEncoderLayer(layers.Layer):
    """Applies a convolution and a gated linear unit (GLU), with a scaled residual connection.

    The output at each position depends on the `kernel_size` inputs around the position. Inputs
    beyond the ends of a sentence, and padding, count as zeros. The initial weights keep the
    variance of the input. Unlike the paper, the layer has no weight normalization.

    Args:
        d_model: Width D of input and output.
        kernel_size: Number of positions that the convolution reads.
        dropout_rate: Dropout rate of the input of the convolution, in [0, 1).

    Call arguments:
        x: float tensor `(B, S, D)`.
        padding_mask: bool tensor `(B, S)`, True = real token.

    Returns:
        A float tensor `(B, S, D)`.

    Source: Gehring et al. 2017, §3.2 and §3.5.
    """

    def __init__(self, d_model: int, kernel_size: int, dropout_rate: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.d_model = d_model
        self.kernel_size = kernel_size
        self.dropout = Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout")
        # Dropout and the gate make the variance smaller (§3.5).
        self.convolution = layers.Dense(
            2 * d_model,
            kernel_initializer=keras.initializers.VarianceScaling(4 * (1 - dropout_rate), "fan_in"),
            dtype=self.dtype_policy,
            name="convolution",
        )

    def build(self, x_shape: Any) -> None:
        self.convolution.build((*x_shape[:-1], self.kernel_size * self.d_model))

    @checkpointable
    def call(self, x: Any, padding_mask: Any) -> Any:
        real = ops.where(padding_mask[..., None], x, 0.0)
        after = self.kernel_size // 2
        return (x + self._convolve(real, self.kernel_size - 1 - after, after)) * HALF_VARIANCE

    def _convolve(self, x: Any, before: int, after: int) -> Any:
        """Reads `before` positions before and `after` positions after each position."""
        x = ops.pad(self.dropout(x), ((0, 0), (before, after), (0, 0)))
        last = before + after
        windows = [x[:, start : start - last or None] for start in range(self.kernel_size)]
        return self._gated(ops.concatenate(windows, axis=-1))

    def _gated(self, windows: Any) -> Any:
        """Applies the kernel and the GLU to windows `(B, T, kernel_size * D)`."""
        return ops.glu(self.convolution(windows), axis=-1)


class ConvolutionalDecoderLayer(ConvolutionalEncoderLayer):
    """Applies a causal convolution, a gated linear unit and attention to the encoder's output.

    The convolution reads only the current and earlier positions. Each layer has its own attention,
    so that a layer knows what the layers below attended to (multi-step attention). The scores are
    dot products without scaling.

    Args:
        d_model, kernel_size, dropout_rate: See `ConvolutionalEncoderLayer`.
        d_embedding: Width E of embeddings, keys and values.

    Call arguments:
        x: float tensor `(B, T, D)`.
        embeddings: float tensor `(B, T, E)`, the embeddings of the target tokens.
        key: float tensor `(B, S, E)`, the encoder's output.
        value: float tensor `(B, S, E)`, the encoder's output plus the source embeddings.
        memory_padding_mask: bool tensor `(B, S)`, True = real source token.
        return_attention_weights: Whether to also return the attention weights `(B, T, S)`.

    Returns:
        A float tensor `(B, T, D)`, or a tuple of this tensor and the attention weights.

    Source: Gehring et al. 2017, §3.2 to §3.4.
    """

    def __init__(
        self,
        d_model: int,
        kernel_size: int,
        dropout_rate: float,
        d_embedding: int,
        **kwargs: Any,
    ) -> None:
        super().__init__(d_model, kernel_size, dropout_rate, **kwargs)
        self.d_embedding = d_embedding
        options = {"kernel_initializer": "lecun_normal", "dtype": self.dtype_policy}
        self.query_projection = layers.Dense(d_embedding, name="query", **options)
        self.output_projection = layers.Dense(d_model, name="output", **options)

    def build(self, x_shape: Any, embeddings_shape: Any, key_shape: Any, value_shape: Any) -> None:
        super().build(x_shape)
        self.query_projection.build(x_shape)
        self.output_projection.build(embeddings_shape)

    @checkpointable
    def call(
        self,
        x: Any,
        embeddings: Any,
        key: Any,
        value: Any,
        memory_padding_mask: Any,
        return_attention_weights: bool = False,
    ) -> Any:
        convolved = self._convolve(x, self.kernel_size - 1, 0)
        memory = key, value, memory_padding_mask
        output, weights = self._attend(x, convolved, embeddings, *memory)
        record_attention(self, "cross", weights)
        return (output, weights) if return_attention_weights else output

    def _attend(
        self, x: Any, convolved: Any, embeddings: Any, key: Any, value: Any, mask: Any
    ) -> tuple[Any, Any]:
        """Adds the attention's result to `convolved`, and the layer's input `x` to the sum."""
        query = (self.query_projection(convolved) + embeddings) * HALF_VARIANCE
        context, weights = scaled_dot_product_attention(
            query, key, value, attention_mask=mask[:, None], use_scale=False
        )
        # A mean of n independent vectors has 1 / n of their variance (§3.5).
        length = ops.sum(ops.cast(mask, "float32"), axis=1, keepdims=True)[..., None]
        context = context * ops.cast(ops.sqrt(length), self.compute_dtype)
        attended = (convolved + self.output_projection(context)) * HALF_VARIANCE
        return (x + attended) * HALF_VARIANCE, weights

    def step(
        self, x: Any, past: Any, embeddings: Any, key: Any, value: Any, memory_padding_mask: Any
    ) -> tuple[Any, Any, Any]:
        """Decodes one new token per hypothesis.

        Args:
            x: float tensor `(B, N, D)`, one vector for the new token of each hypothesis.
            past: float tensor `(B, N, kernel_size - 1, D)`, the inputs `x` of the steps before.
                Before the first step, they are zeros.
            embeddings: float tensor `(B, N, E)`, the embeddings of the new tokens.
            key, value, memory_padding_mask: See the call arguments.

        Returns:
            A tuple of the output `(B, N, D)`, the new `past`, and the attention weights
            `(B, N, S)`.
        """
        window = ops.concatenate([past, x[:, :, None]], axis=2)
        flat = ops.reshape(window, (*ops.shape(x)[:2], self.kernel_size * self.d_model))
        convolved = self._gated(flat)
        output, weights = self._attend(x, convolved, embeddings, key, value, memory_padding_mask)
        return output, window[:, :, 1:], weights


@register_architecture(
    "convolutional",
    presets={
        "tiny": {"num_layers": 4, "d_model": 256, "d_embedding": 256, "dropout_rate": 0.2},
        # §4.2: WMT16 English-Romanian.
        "base": {"num_layers": 20, "d_model": 512, "d_embedding": 512, "dropout_rate": 0.2},
    },
)
@keras.saving.register_keras_serializable(package="before_transformers")
class ConvolutionalSeq2Seq(Seq2Seq):
    """Convolutional encoder and decoder with gated linear units and multi-step attention.

    Unlike in the paper, one matrix is both target embedding and output projection (Press and Wolf
    2017), there is no weight normalization, and the encoder's gradients are not scaled.

    Args:
        vocabulary_size, target_vocabulary_size, pad_id, dtype: See `Transformer`.
        num_layers: Number of encoder layers. Defaults to 20.
        num_decoder_layers: Number of decoder layers. Defaults to `num_layers`.
        d_model: Width D of the convolutions. Defaults to 512.
        d_embedding: Width E of the embeddings. Defaults to 512.
        kernel_size: Number of positions that a convolution reads. Defaults to 3.
        dropout_rate: Dropout rate, in [0, 1), for embeddings, the input of each convolution, and
            the decoder's output. Defaults to 0.2.
        max_length: Maximum sequence length in tokens, which is the number of learned position
            embeddings. Defaults to 1024.

    For the call arguments and the result, see `Transformer`.

    Raises:
        ValueError: If a sequence has more than `max_length` tokens (see
            `LearnedPositionalEncoding`).

    Source: Gehring et al. 2017, Convolutional Sequence to Sequence Learning.
    """

    def __init__(
        self,
        vocabulary_size: int,
        target_vocabulary_size: int | None = None,
        num_layers: int = 20,
        num_decoder_layers: int | None = None,
        d_model: int = 512,
        d_embedding: int = 512,
        kernel_size: int = 3,
        dropout_rate: float = 0.2,
        max_length: int = 1024,
        pad_id: int = 0,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        policy = keras.dtype_policies.get(dtype)
        decoder_depth = num_layers if num_decoder_layers is None else num_decoder_layers
        source_embedding, target_embedding = token_embeddings(
            vocabulary_size, target_vocabulary_size, pad_id, d_embedding, policy
        )
        source_positions, positions = (
            LearnedPositionalEncoding(max_length, dtype=policy, name=f"{side}_positions")
            for side in ("source", "target")
        )
        dropout = Dropout(dropout_rate, dtype=policy, name="dropout")
        sizes = {"kernel_size": kernel_size, "dropout_rate": dropout_rate, "dtype": policy}
        encoder = [
            ConvolutionalEncoderLayer(d_model, name=f"encoder_layer_{i}", **sizes)
            for i in range(1, num_layers + 1)
        ]
        decoder = [
            ConvolutionalDecoderLayer(
                d_model, d_embedding=d_embedding, name=f"decoder_layer_{i}", **sizes
            )
            for i in range(1, decoder_depth + 1)
        ]
        encoder_input, encoder_output, decoder_input, decoder_output = (
            layers.Dense(
                width, kernel_initializer="lecun_normal", dtype=policy, name=f"{side}_{end}"
            )
            for side in ("encoder", "decoder")
            for end, width in (("input", d_model), ("output", d_embedding))
        )

        # As layers, because a functional model rounds Python's numbers to Keras's `floatx`.
        scale, halve_variance = (
            layers.Rescaling(factor, dtype=policy, name=name)
            for name, factor in (("scale", EMBEDDING_SCALE), ("half_variance", HALF_VARIANCE))
        )
        inputs = ids_inputs()
        source_ids, target_ids = inputs["source_ids"], inputs["target_ids"]
        mask = padding_mask(source_ids, pad_id)
        embedded = dropout(source_positions(scale(source_embedding(source_ids))))
        x = encoder_input(embedded)
        for layer in encoder:
            x = layer(x, padding_mask=mask)
        key = encoder_output(x)
        value = halve_variance(key + embedded)
        embeddings = dropout(positions(scale(target_embedding(target_ids))))
        y = decoder_input(embeddings)
        for layer in decoder:
            y = layer(y, embeddings=embeddings, key=key, value=value, memory_padding_mask=mask)
        states = dropout(decoder_output(y))
        logits = target_embedding(states, reverse=True)
        super().__init__(inputs, logits, **kwargs)

        self.dtype_policy = policy
        self.vocabulary_size = vocabulary_size
        self.target_vocabulary_size = target_vocabulary_size
        self.num_layers = num_layers
        self.num_decoder_layers = num_decoder_layers
        self.d_model = d_model
        self.d_embedding = d_embedding
        self.kernel_size = kernel_size
        self.dropout_rate = dropout_rate
        self.max_length = max_length
        self.pad_id = pad_id
        self.source_embedding = source_embedding
        self.target_embedding = target_embedding
        self.positions = positions
        self.decoder_layers = decoder
        self.decoder_input = decoder_input
        self.decoder_output = decoder_output
        self.states = states
        self._encode = keras.Function(source_ids, [key, value])

    def init_cache(self, source_ids: Any, max_length: int | None, beam_size: Any = 1) -> Cache:
        """Encodes the sources and returns the cache (see `Searchable.init_cache`).

        The cache contains the last inputs of each convolution of each hypothesis, and the encoder's
        output.

        Raises:
            ValueError: If `max_length` exceeds the number of position embeddings.
        """
        self.positions.check_length(max_length or 0)
        key, value = self._encode(source_ids)
        shape = (ops.shape(source_ids)[0], beam_size, self.kernel_size - 1, self.d_model)
        return Cache(
            beam=[ops.zeros(shape, self.compute_dtype) for _ in self.decoder_layers],
            sentence={
                "key": key,
                "value": value,
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
        """Predicts the next token of every beam (see `Searchable.step`).

        The attention weights are the mean over all layers.
        """
        sentence = cache.sentence
        memory = sentence["key"], sentence["value"], sentence["padding_mask"]
        x = self.embed_step(token_ids, cache) * EMBEDDING_SCALE
        x = self.positions(x, offset=position)
        embeddings = ops.reshape(x, (*ops.shape(token_ids), self.d_embedding))
        y, past, weights = self.decoder_input(embeddings), [], []
        for layer, own in zip(self.decoder_layers, cache.beam, strict=True):
            y, *found = layer.step(y, own, embeddings, *memory)
            past.append(found[0])
            weights.append(found[1])
        states = ops.reshape(self.decoder_output(y), (-1, self.d_embedding))
        logits, cache = self.step_logits(states, token_ids, cache), cache._replace(beam=past)
        if return_attention_weights:
            return logits, cache, mean(weights)
        return logits, cache

    def source_attention(self, source_ids: Any, target_ids: Any) -> Any:
        """Returns the attention weights from target to source tokens (see `Searchable`).

        The weights, float32 `(B, N, T, S)`, are the mean over all layers, and 0 for padding.
        """
        _, beams, length = ops.shape(target_ids)
        key, value, mask = (
            ops.repeat(x, beams, axis=0)
            for x in (*self._encode(source_ids), padding_mask(source_ids, self.pad_id))
        )
        x = self.target_embedding(ops.reshape(target_ids, (-1, length))) * EMBEDDING_SCALE
        embeddings = self.positions(x)
        y, weights = self.decoder_input(embeddings), []
        for layer in self.decoder_layers:
            memory = {"key": key, "value": value, "memory_padding_mask": mask}
            y, own = layer(y, embeddings=embeddings, **memory, return_attention_weights=True)
            weights.append(own)
        return self.without_padding(mean(weights), source_ids, target_ids)


def mean(weights: list[Any]) -> Any:
    """Returns the mean of equally shaped tensors, in float32."""
    return sum(ops.cast(own, "float32") for own in weights) / len(weights)


if __name__ == "__main__":
    main()
