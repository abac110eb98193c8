"""The decoder layer of Marian's student models: recurrence in the place of self-attention."""

from typing import Any

import keras
from keras import ops

from keras_transformer._backend.types import Mask, Rule, Shape, Size, Tensor
from keras_transformer.layers.attention.cache import Cache, CacheSize
from keras_transformer.layers.attention.decoding_step import DecodingStep
from keras_transformer.layers.base import ConfiguredLayer, Dense, dense_options
from keras_transformer.layers.stacks.decoder import DecoderLayer


@keras.saving.register_keras_serializable(package="keras_transformer")
class SSRU(ConfiguredLayer):
    """The Simpler Simple Recurrent Unit: each position sees itself and the earlier ones.

    It computes `c_t = f_t * c_{t-1} + (1 - f_t) * W x_t` with the forget gate
    `f_t = sigmoid(W_f x_t + b_f)` and `c_0 = 0`, and returns `relu(c_t)`. A step of decoding takes
    the same time at every position, and its cache is one vector. Calls, `init_cache` and `step` are
    those of a causal `MultiHeadAttention`, whose place it takes.

    Example:

    >>> SSRU()(x).shape         # (B, T, D), that of `x`

    Args:
        kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer: Those of both
            linear maps. Default to `"glorot_uniform"`, `"zeros"`, None and None.
        use_bias: Whether the forget gate has a bias. Defaults to True.

    Call arguments:
        query: float tensor `(B, T, D)`.
        padding_mask: Not used, because padding at the end has no effect on real tokens.
        attention_mask, use_causal_mask, return_attention_weights: As given, or `ValueError`.

    Returns:
        A float tensor `(B, T, D)`.

    Source: Kim et al. 2019, From Research to Production and Back, eq. 3 to 5.
    """

    def __init__(
        self,
        kernel_initializer: Rule = "glorot_uniform",
        bias_initializer: Rule = "zeros",
        kernel_regularizer: Rule = None,
        bias_regularizer: Rule = None,
        use_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.store_arguments(locals())

    def build(self, x_shape: Shape) -> None:
        options = dense_options(self)
        self.forget_gate = Dense(x_shape[-1], name="forget_gate", **options)
        self.candidate = Dense(x_shape[-1], name="candidate", **{**options, "use_bias": False})
        self.forget_gate.build(x_shape)
        self.candidate.build(x_shape)

    def _output_spec(self, query: Tensor, **_: Any) -> Any:
        return keras.KerasTensor(query.shape, self.compute_dtype)

    def call(
        self,
        query: Tensor,
        padding_mask: Mask | None = None,
        attention_mask: Mask | None = None,
        use_causal_mask: bool = True,
        return_attention_weights: bool = False,
    ) -> Any:
        if attention_mask is not None or not use_causal_mask or return_attention_weights:
            raise ValueError(
                "An SSRU is causal and has no attention. Received: "
                f"attention_mask={attention_mask}, use_causal_mask={use_causal_mask}, "
                f"return_attention_weights={return_attention_weights}"
            )
        return self._output(linear_recurrence(*self._terms(query)))

    def init_cache(self, size: CacheSize) -> Cache:
        """Returns the cache for `step`: c of each hypothesis, float32 `(B, N, D)`."""
        width = self.candidate.units
        return Cache(beam=ops.zeros((size.batch, size.beam_size, width), "float32"))

    def step(self, query: Tensor, cache: Cache, step: DecodingStep) -> tuple[Any, Cache, None]:
        """Computes what `call` computes for the tokens of a decoding step, `query` `(B, T, D)`."""
        factors, terms = self._terms(query)
        if step.position is None:  # a prompt, which begins with padding
            is_real = step.prompt_mask[..., None]
            factors, terms = ops.where(is_real, factors, 1.0), ops.where(is_real, terms, 0.0)
            states = linear_recurrence(factors, terms)
            state = ops.broadcast_to(states[:, -1:], ops.shape(cache.beam))
        else:
            states = state = factors * cache.beam + terms
        return self._output(states), Cache(beam=state), None

    def _terms(self, x: Tensor) -> tuple[Any, Any]:
        """Returns f and (1 - f) * W x. Sums over many positions need float32."""
        forget = ops.sigmoid(ops.cast(self.forget_gate(x), "float32"))
        return forget, (1 - forget) * ops.cast(self.candidate(x), "float32")

    def _output(self, state: Tensor) -> Any:
        return ops.cast(ops.relu(state), self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SSRUDecoderLayer(DecoderLayer):
    """A decoder layer with an `SSRU` in the place of causal self-attention.

    Firefox's and Bergamot's translators have this layer. CTranslate2, ONNX and Hugging Face do not.

    Example:

    >>> model = Transformer(8000, num_decoder_layers=2, decoder_layer=SSRUDecoderLayer)

    For arguments, calls and errors, see `DecoderLayer`. Position encodings and patterns of
    self-attention have no effect in it, and its calls refuse an `attention_mask`.

    Source: Kim et al. 2019, From Research to Production and Back, §2.
    """

    takes_attention_mask = False

    def _self_attention(self, name: str) -> Any:
        return SSRU(name=name, **dense_options(self))


def linear_recurrence(factors: Tensor, terms: Tensor) -> Any:
    """Returns c with `c_t = factors_t * c_{t-1} + terms_t` and `c_0 = 0`; all are `(B, T, D)`.

    It takes log2(T) operations on whole tensors, as `keras.ops.associative_scan` does, which needs
    a length that is known when TensorFlow traces it.
    """
    positions = ops.arange(ops.shape(terms)[1])[:, None]

    def double(distance: Size, factors: Tensor, terms: Tensor) -> tuple[Any, Any, Any]:
        """Makes each position the sum of twice as many terms."""
        is_there = positions >= distance
        earlier = ops.where(is_there, ops.roll(terms, distance, axis=1), 0.0)
        product = ops.where(is_there, ops.roll(factors, distance, axis=1), 1.0)
        return distance * 2, factors * product, terms + factors * earlier

    state: tuple[Any, Any, Any] = 1, factors, terms
    if terms.shape[1] is None:
        length = ops.shape(terms)[1]
        return ops.while_loop(lambda i, *_: i < length, double, state, maximum_iterations=31)[2]
    while state[0] < terms.shape[1]:
        state = double(*state)
    return state[2]
