"""Computes parts of a training step on a GPU of JAX in fewer passes than XLA makes."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

# Width of heads above which some GPUs have no kernel for attention.
_WIDEST = 128


def device_type() -> str:
    """Returns the kind of JAX's device: "cuda" for one NVIDIA GPU that has cuDNN's attention.

    With several GPUs, the result is "gpu", because there these kernels were not tried.
    """
    device = jax.config.jax_default_device or jax.devices()[0]
    if not getattr(device, "device_kind", "").startswith("NVIDIA"):
        return getattr(device, "platform", "")
    return "cuda" if jax.device_count() == 1 and float(device.compute_capability) >= 8 else "gpu"


def attend(
    query: Any, key: Any, value: Any, padding_mask: Any, use_causal_mask: bool, use_scale: bool
) -> Any:
    """Computes attention by cuDNN, see `operations.attend`. Returns None where it has no kernel."""
    batch_size, _, length, width = query.shape
    is_half = query.dtype in (jnp.bfloat16, jnp.float16) and query.dtype == key.dtype == value.dtype
    if not is_half or width % 8 or width > _WIDEST or length % 2 or key.shape[2] % 2:
        return None
    if padding_mask is not None:
        mask_shape = (batch_size, 1, length, key.shape[2])
        padding_mask = jnp.broadcast_to(jnp.asarray(padding_mask)[:, None, None], mask_shape)
    heads = jax.nn.dot_product_attention(
        *(jnp.swapaxes(x, 1, 2) for x in (query, key, value)),
        mask=padding_mask,
        is_causal=use_causal_mask,
        scale=None if use_scale else 1.0,
        implementation="cudnn",
    )
    return jnp.swapaxes(heads, 1, 2)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_normalization(x: Any, gain: Any, bias: Any, epsilon: float) -> Any:
    """Normalizes tokens `(..., D)` in the dtype of `gain` and `bias` `(D,)`, in one pass."""
    return _forward(x, gain, bias, epsilon)[0]


def _forward(x: Any, gain: Any, bias: Any, epsilon: float) -> tuple[Any, Any]:
    tokens = x.astype(gain.dtype)
    mean = jnp.mean(tokens, axis=-1, keepdims=True)
    variance = jnp.mean(tokens * tokens, axis=-1, keepdims=True) - mean * mean
    scale = jax.lax.rsqrt(jnp.maximum(variance, 0) + epsilon)
    return ((tokens - mean) * scale * gain + bias).astype(x.dtype), (x, gain, mean, scale)


def _backward(epsilon: float, saved: Any, upstream: Any) -> tuple[Any, Any, Any]:
    x, gain, mean, scale = saved
    upstream = upstream.astype(gain.dtype)
    normal = (x.astype(gain.dtype) - mean) * scale
    inner = upstream * gain
    along = normal * jnp.mean(inner * normal, axis=-1, keepdims=True)
    d_x = scale * (inner - jnp.mean(inner, axis=-1, keepdims=True) - along)
    d_gain, d_bias = jax.lax.reduce(
        (upstream * normal, upstream),
        (jnp.zeros((), gain.dtype),) * 2,
        lambda a, b: (a[0] + b[0], a[1] + b[1]),
        tuple(range(x.ndim - 1)),
    )
    return d_x.astype(x.dtype), d_gain, d_bias


layer_normalization.defvjp(_forward, _backward)


@jax.custom_vjp
def relu(x: Any) -> Any:
    """ReLU whose gradient needs the result only, so that XLA computes ReLU in the product before.

    With `y > 0` in the gradient, XLA would compute it in a pass of its own.
    """
    return jnp.maximum(x, 0)


relu.defvjp(
    lambda x: (jnp.maximum(x, 0),) * 2,
    lambda y, upstream: (jnp.where(y != 0, upstream, 0).astype(y.dtype),),
)


def largest_and_total(logits: Any) -> tuple[Any, Any]:
    """Returns the largest logit of each row, and the sum of exp(logit - largest), `(..., 1)`."""

    def joined(a: Any, b: Any) -> tuple[Any, Any]:
        largest = jnp.maximum(a[0], b[0])
        return largest, a[1] * jnp.exp(a[0] - largest) + b[1] * jnp.exp(b[0] - largest)

    begin = jnp.asarray(-1e30, logits.dtype), jnp.zeros((), logits.dtype)
    rows = jax.lax.reduce((logits, jnp.ones_like(logits)), begin, joined, (logits.ndim - 1,))
    return rows[0][..., None], rows[1][..., None]
