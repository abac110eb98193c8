"""The backend's own kernel for attention, where it has one. Nothing else knows of it."""

import math
from typing import Any

import keras
from keras import ops


def fused_attention(
    query: Any,
    key: Any,
    value: Any,
    padding_mask: Any = None,
    use_causal_mask: bool = False,
    use_scale: bool = True,
) -> Any:
    """Computes softmax(QK^T / sqrt(d_k)) V by a kernel that holds no scores.

    PyTorch has one for every device. It takes either mask, not both, which would have to be joined
    to one of all queries and keys. JAX has one for GPUs and TPUs, in half precision, and none
    that takes a padding mask. TensorFlow has none. Values must be as wide as keys.

    Args:
        query: float tensor `(B, H, T, K)`.
        key: float tensor `(B, H, S, K)`.
        value: float tensor `(B, H, S, K_v)`.
        padding_mask: bool tensor `(B, S)`, True where a key is a real token. Defaults to None.
        use_causal_mask: Whether position t attends only to positions up to t. Defaults to False.
        use_scale: Whether scores are divided by sqrt(K). Defaults to True.

    Returns:
        A float tensor `(B, H, T, K_v)`, or None where there is no kernel for these arguments.
    """
    backend = keras.backend.backend()
    if padding_mask is not None and (use_causal_mask or backend != "torch"):
        return None
    if query.shape[-1] != value.shape[-1]:
        return None
    try:
        heads = ops.dot_product_attention(
            *(ops.swapaxes(x, 1, 2) for x in (query, key, value)),
            mask=None if padding_mask is None else padding_mask[:, None, None, :],
            scale=1.0 / math.sqrt(query.shape[-1]) if use_scale else 1.0,
            is_causal=use_causal_mask,
            # PyTorch chooses well by itself; elsewhere the choice may be all scores.
            flash_attention=None if backend == "torch" else True,
        )
    except (ImportError, RuntimeError, ValueError):
        return None
    return ops.swapaxes(heads, 1, 2)
