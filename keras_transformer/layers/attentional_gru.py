"""A recurrent decoder layer that attends to the encoder's output before each step."""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.attention.additive_attention import AdditiveAttention
from keras_transformer.layers.attention.attention_records import record_attention
from keras_transformer.layers.base import ConfiguredLayer


@keras.saving.register_keras_serializable(package="keras_transformer")
class AttentionalGRU(ConfiguredLayer):
    """GRU (gated recurrent unit) that attends to a memory before each step.

    From the state before the step, additive attention computes the context, a weighted mean of the
    memory. The GRU reads the input and the context, and computes the new state.

    Example:

    >>> layer = AttentionalGRU(units=512)
    >>> y = layer(y, initial_state=state, memory=memory, memory_padding_mask=source_ids != 0)

    Args:
        units: Width U of the state, and of the hidden layer of the attention.

    Call arguments:
        x: float tensor `(B, T, D)`.
        initial_state: float tensor `(B, U)`, the state before the first step.
        memory: float tensor `(B, S, D_m)`, the encoder's output.
        memory_padding_mask: bool tensor `(B, S)`, True = real source token. Defaults to None, which
            means the Keras mask of `memory`, if any.
        return_attention_weights: Whether to also return the attention weights. Defaults to False.

    Returns:
        A float tensor `(B, T, U + D_m)`: the state after each step, followed by the context of the
        step. With `return_attention_weights`, the layer returns a tuple of this tensor and the
        attention weights `(B, T, S)`.

    Source: Bahdanau, Cho and Bengio 2015, appendix A.1.2 and A.2.2. The reset gate is applied after
    the matrix product, as in cuDNN and PyTorch.
    """

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        # XLA cannot compile the gradient of a loop of TensorFlow without a maximum number of steps.
        self.supports_jit = keras.config.backend() != "tensorflow"
        self.units = units
        self.attention = AdditiveAttention(units, dtype=self.dtype_policy, name="attention")
        self.cell = keras.layers.GRUCell(units, dtype=self.dtype_policy, name="cell")

    def build(self, x_shape: Any, initial_state_shape: Any, memory_shape: Any) -> None:
        self.attention.build((None, None, self.units), memory_shape)
        self.cell.build((None, x_shape[-1] + memory_shape[-1]))
        self.built = True

    def call(
        self,
        x: Any,
        initial_state: Any,
        memory: Any,
        memory_padding_mask: Any = None,
        return_attention_weights: bool = False,
        x_mask: Any = None,
        initial_state_mask: Any = None,
        memory_mask: Any = None,
    ) -> Any:
        # Keras sets the last three arguments. Padding at the end of `x` needs no mask.
        mask = memory_mask if memory_padding_mask is None else memory_padding_mask
        keys = self.attention.key_projection(memory)

        def advance(carried: tuple[Any, Any, Any], inputs: Any) -> tuple[Any, Any]:
            carried = self.step(inputs[:, None], carried[0], keys, memory, mask)
            return carried, carried

        state = ops.cast(initial_state, self.compute_dtype)[:, None]
        begin = (state, ops.zeros_like(memory[:, :1]), ops.zeros_like(memory[:, None, :, 0]))
        _, found = ops.scan(advance, begin, ops.swapaxes(x, 0, 1))
        states, contexts, weights = (ops.swapaxes(x[:, :, 0], 0, 1) for x in found)
        record_attention(self, "cross", weights)
        output = ops.concatenate([states, contexts], axis=-1)
        return (output, weights) if return_attention_weights else output

    def step(
        self, x: Any, state: Any, projected_memory: Any, memory: Any, memory_padding_mask: Any
    ) -> tuple[Any, Any, Any]:
        """Computes one step of N independent sequences per memory, such as the beams of a search.

        Args:
            x: float tensor `(B, N, D)`.
            state: float tensor `(B, N, U)`, the state before the step.
            projected_memory: float tensor `(B, S, U)`, the result of `attention.key_projection`.
            memory: float tensor `(B, S, D_m)`.
            memory_padding_mask: bool tensor `(B, S)`, True = real source token, or None.

        Returns:
            A tuple of the new state `(B, N, U)`, the context `(B, N, D_m)` and the attention
            weights `(B, N, S)`.
        """
        context, weights = self.attention.attend(
            state, projected_memory, memory, memory_padding_mask
        )
        inputs = ops.concatenate([x, context], axis=-1)
        flat = ops.reshape(inputs, (-1, inputs.shape[-1]))
        new, _ = self.cell(flat, [ops.reshape(state, (-1, self.units))])
        return ops.reshape(new, ops.shape(state)), context, weights
