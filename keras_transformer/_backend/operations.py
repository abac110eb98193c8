"""Contains operations that differ by backend, such as affine maps, attention and loops."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer._backend.types import Mask, Size, Tensor

# Replaces masked scores. It is finite: if all keys of a query are masked, they get equal weights
# instead of NaN.
MASKED_SCORE = -1e9

# Devices of PyTorch and JAX on which layers use kernels that are faster there than their formulas.
FUSED_DEVICES = ("cuda",)


def custom_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Works like `keras.ops.custom_gradient`, but raises errors of `function` unchanged.

    On PyTorch, Keras calls the function again after any error. After Ctrl-C, the user would see an
    `AttributeError`.
    """
    errors: list[BaseException] = []

    def run_once(*tensors: Any) -> Any:
        if errors:
            raise errors.pop()
        try:
            return function(*tensors)
        except BaseException as error:
            if keras.config.backend() == "torch":
                errors.append(error)
            raise

    return ops.custom_gradient(run_once)


def is_eager(x: Any) -> bool:
    """Returns whether `x` has values, outside of compiled functions. On PyTorch, always False."""
    if keras.config.backend() == "jax":
        import jax

        return not isinstance(x, jax.core.Tracer | keras.KerasTensor)
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        return tf.executing_eagerly() and not isinstance(x, keras.KerasTensor)
    return False


def is_fused(x: Tensor) -> bool:
    """Returns whether `x`, or JAX, is on one of the `FUSED_DEVICES`."""
    if keras.config.backend() == "jax":
        from keras_transformer._backend.jax_kernels import device_type

        return device_type() in FUSED_DEVICES
    return getattr(getattr(x, "device", None), "type", None) in FUSED_DEVICES


def attend(
    query: Any,
    key: Tensor,
    value: Tensor,
    padding_mask: Mask | None = None,
    use_causal_mask: bool = False,
    use_scale: bool = True,
    attention_mask: Mask | None = None,
) -> Any:
    """Computes attention by a fused kernel of PyTorch or cuDNN, which does not store the scores.

    The mask is finite and has the dtype of the query, without which PyTorch's kernels are wrong.
    There, a query whose keys are all padding attends to all of them: otherwise, its gradient is NaN
    on an H100 with 64 keys (issue 196678 of pytorch/pytorch). For the arguments and the result, see
    `AttentionPattern`; the number of heads of keys and values divides that of queries, and
    `attention_mask` is bool `(B, T, S)`. The result is None where the formula is to be used: on
    TensorFlow, on other devices of JAX, there also with `attention_mask`, and if values and keys
    differ in width.
    """
    if keras.config.backend() == "tensorflow" or query.shape[-1] != value.shape[-1]:
        return None
    if keras.config.backend() == "jax":
        from keras_transformer._backend import jax_kernels

        given = padding_mask, use_causal_mask, use_scale
        has_kernel = is_fused(query) and attention_mask is None
        return jax_kernels.attend(query, key, value, *given) if has_kernel else None
    import torch

    query, key, value = (ops.convert_to_tensor(x) for x in (query, key, value))
    mask = None
    if padding_mask is not None or attention_mask is not None:
        ones = torch.ones(query.shape[2], key.shape[2], device=query.device, dtype=torch.bool)
        visible = allowed = ones.tril() if use_causal_mask else ones[:1]
        if padding_mask is not None:
            visible = ops.convert_to_tensor(padding_mask)[:, None, None, :] & visible
        if attention_mask is not None:
            visible = ops.convert_to_tensor(attention_mask)[:, None] & visible
        visible = visible | (allowed & ~visible.any(-1, keepdim=True))
        score = max(MASKED_SCORE, torch.finfo(query.dtype).min)
        mask = torch.zeros_like(visible, dtype=query.dtype).masked_fill(~visible, score)
        mask = mask.expand(-1, query.shape[1], query.shape[2], -1)
    options: dict[str, Any] = {"scale": None if use_scale else 1.0}
    options["is_causal"] = use_causal_mask and mask is None
    options["enable_gqa"] = key.shape[1] != query.shape[1]
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, **options)


def read(weight: Any) -> np.ndarray:
    """Returns the values of a weight, which must not be changed: on a CPU, it is no copy."""
    try:
        return np.from_dlpack(ops.stop_gradient(weight.value))
    except (BufferError, RuntimeError, TypeError):  # bfloat16, a GPU, or several devices
        return np.asarray(ops.convert_to_numpy(weight.value))


def assign(weight: Any, value: Any) -> None:
    """Gives a weight the values of an array, with fewer copies than by its method."""
    weight.assign(to_tensor(value))


def to_tensor(value: Any) -> Tensor:
    """Returns the tensor of an array, which must not be changed, with the fewest copies."""
    value = np.asarray(value)  # TensorFlow would copy a subclass, as of a mapped file, twice.
    if keras.config.backend() == "torch":
        import torch

        value = torch.from_numpy(np.require(value, requirements="W"))
    return ops.convert_to_tensor(value)  # The array is freed before TensorFlow copies the tensor.


def joined_affine(x: Tensor, layers: Sequence[Any]) -> list[Any]:
    """Computes `Dense` layers of one input, by one product on a GPU."""
    if not is_fused(x) or any(layer.quantization_config or layer.lora_enabled for layer in layers):
        return [layer(x) for layer in layers]
    kernels, widths = [layer.kernel for layer in layers], [layer.units for layer in layers]
    dtype, bias = layers[0].compute_dtype, None
    x, kernel = ops.cast(x, dtype), ops.cast(ops.concatenate(kernels, axis=1), dtype)
    if layers[0].use_bias:
        bias = ops.cast(ops.concatenate([layer.bias for layer in layers]), dtype)
    if keras.config.backend() == "torch":
        import torch

        y = torch.nn.functional.linear(x, kernel.t(), bias)  # adds the bias in the product
        return list(y.split(widths, dim=-1))  # `ops.split` would wait for the GPU
    y = ops.matmul(x, kernel)
    y = y if bias is None else y + bias
    return ops.split(y, list(itertools.accumulate(widths))[:-1], axis=-1)


def one_pass_normalization(x: Any, gain: Any, bias: Any, epsilon: float) -> Any:
    """Normalizes tokens `(..., D)` in one pass on a GPU of JAX. Otherwise, returns None."""
    if keras.config.backend() != "jax" or not is_fused(x) or gain is None or bias is None:
        return None
    from keras_transformer._backend.jax_kernels import layer_normalization

    dtype = keras.backend.result_type(x.dtype, "float32")
    return layer_normalization(x, ops.cast(gain, dtype), ops.cast(bias, dtype), epsilon)


def affine_relu(x: Tensor, kernel: Tensor, bias: Tensor) -> Any:
    """Computes the ReLU of an affine map in one product on a GPU. Otherwise, returns None."""
    if not is_fused(x):
        return None
    if keras.config.backend() == "jax":
        from keras_transformer._backend.jax_kernels import relu

        return relu(ops.matmul(x, kernel) + bias)
    x, kernel, bias = (ops.convert_to_tensor(z) for z in (x, kernel, bias))
    rows = ops.reshape(x, (-1, x.shape[-1]))
    return ops.reshape(_affine_relu()(rows, kernel, bias), (*x.shape[:-1], kernel.shape[-1]))


@functools.cache
def _affine_relu() -> Callable[..., Any]:
    import torch

    class AffineRelu(torch.autograd.Function):
        """The gradient needs the result only, and not what ReLU was applied to."""

        @staticmethod
        def forward(context: Any, x: Any, kernel: Any, bias: Any) -> Any:
            y = torch.ops.aten._addmm_activation(bias, x, kernel)
            context.save_for_backward(x, kernel, y)
            return y

        @staticmethod
        def backward(context: Any, upstream: Any) -> Any:
            x, kernel, y = context.saved_tensors
            upstream = torch.where(y > 0, upstream, 0.0)
            return upstream @ kernel.t(), x.t() @ upstream, upstream.sum(0)

    return AffineRelu.apply


def sequential_loop(count: Size, body: Callable[..., Any], begin: Sequence[Any]) -> tuple[Any, ...]:
    """Calls `body` with the indices 0, 1, ..., `count` - 1, one call at a time.

    On TensorFlow without XLA, the loops of Keras run up to ten iterations in parallel and store all
    their tensors. `body` is a function of the index (on PyTorch an int, otherwise an int32 tensor)
    and the loop's tensors, at first `begin`. It returns new ones.
    """
    if keras.config.backend() == "torch":
        carried = tuple(begin)
        for index in range(int(count)):  # A tensor as index would make Python wait for the GPU.
            carried = tuple(body(index, *carried))
        return carried
    loop: Callable[..., Any] = ops.while_loop
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        loop = functools.partial(tf.while_loop, parallel_iterations=1)
    state = loop(
        lambda index, *_: index < count,
        lambda index, *carried: (index + 1, *body(index, *carried)),
        (ops.convert_to_tensor(0, "int32"), *begin),
    )
    return tuple(state[1:])


def write_slots(x: Any, axis: int, start: Size, values: Any) -> Any:
    """Returns the 3-D tensor `x` with `values` from index `start` of an axis on.

    In inference mode, PyTorch changes `x` itself. Elsewhere, PyTorch copies `x`.
    """
    if keras.config.backend() == "torch":
        import torch

        if torch.is_inference_mode_enabled():
            slots = start + torch.arange(values.shape[axis], device=x.device)
            return x.index_copy_(axis, slots, values.to(x.dtype))
    return ops.slice_update(x, first_indices(start, axis), values)


def own_rows(tensor: Any) -> Any:
    """Returns the rows of a tensor that this process has, which are all unless JAX splits them."""
    if keras.config.backend() == "jax":
        return np.concatenate([x.data for x in tensor.addressable_shards])
    return ops.convert_to_numpy(tensor)


def first_indices(start: Size, axis: int) -> list[Any]:
    """Returns the indices at which a slice of a 3-D tensor begins: `start` at `axis`, else 0.

    All have the type of `start`, an int or an int32 tensor, as JAX with 64-bit numbers requires.
    """
    return [start if i == axis else start * 0 for i in range(3)]


def of_unknown_shape(tensor: Tensor) -> Any:
    """In a TensorFlow graph, makes the sizes of the first axis and of axes of size 0 unknown.

    TensorFlow lets a loop change only unknown sizes. Other backends return the tensor unchanged.
    """
    if keras.config.backend() != "tensorflow":
        return tensor
    import tensorflow as tf

    sizes = tensor.shape.as_list()
    shape = [size if size and axis else None for axis, size in enumerate(sizes)]
    return tf.compat.v1.placeholder_with_default(tensor, shape)


def scalar(value: float, dtype: Any) -> Any:
    """Returns a 0-d tensor, which PyTorch makes on its device.

    Numbers among the arguments of `keras.ops` are copied to it, for which Python waits for the GPU.
    """
    return ops.zeros((), dtype) + value


def global_norm(tensors: Sequence[Any]) -> Any:
    """Returns the square root of the sum of all squares of float32 tensors."""
    if keras.config.backend() == "torch":
        import torch

        return whole_tensor(torch.nn.utils.get_total_norm(tensors))  # a kernel for many tensors
    return ops.sqrt(sum(ops.sum(ops.square(x)) for x in tensors))


def whole_tensor(tensor: Any) -> Any:
    """Returns all of a tensor whose parts the processes of PyTorch may hold. All must call this."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def fused_adam(
    weights: Any, gradients: Any, first: Any, second: Any, step_size: Any, optimizer: Any
) -> None:
    """Updates weights and moments as Keras's Adam does, by PyTorch's kernel for many tensors.

    `step_size` includes the correction of both moments. PyTorch's own are 1 for a late step.
    """
    import torch

    late = [torch.full((), 1e9, device=weights[0].device)] * len(weights)
    rates = {"lr": step_size, "beta1": optimizer.beta_1, "beta2": optimizer.beta_2}
    options = {"weight_decay": 0.0, "eps": optimizer.epsilon, "amsgrad": False, "maximize": False}
    torch._fused_adam_(weights, gradients, first, second, [], late, **rates, **options)


def softmax_parts(logits: Tensor) -> tuple[Any, Any, Any]:
    """Returns the largest logit of each row, exp(logits - largest), and the sum of each row of it.

    A GPU of JAX computes largest and sum in one pass over the logits.
    """
    if keras.config.backend() == "jax" and is_fused(logits):
        from keras_transformer._backend.jax_kernels import largest_and_total

        largest, total = largest_and_total(logits)
        return largest, ops.exp(logits - largest), total
    largest = ops.max(logits, axis=-1, keepdims=True)
    exponentials = ops.exp(logits - largest)
    return largest, exponentials, ops.sum(exponentials, axis=-1, keepdims=True)


def label_logits(logits: Tensor, labels: Tensor) -> Any:
    """Returns the logit of each label (...), and NaN for labels outside the vocabulary.

    Without NaN, backends would differ: PyTorch raises an error, and JAX reads another logit.
    """
    known = (labels >= 0) & (labels < ops.shape(logits)[-1])
    indices = ops.expand_dims(ops.where(known, labels, scalar(0, labels.dtype)), -1)
    return nan_outside(known, ops.squeeze(ops.take_along_axis(logits, indices, axis=-1), axis=-1))


def nan_outside(known: Mask, x: Tensor) -> Tensor:
    """Returns `x` where `known`, a bool tensor, is True, and NaN elsewhere.

    NaN is computed there: a constant would stop programs that check all tensors for NaN.
    """
    one_or_zero = ops.cast(known, x.dtype)
    return x * one_or_zero / one_or_zero
