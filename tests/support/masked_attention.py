"""Attention over all pairs and its gradients by NumPy: what every faster way is held to."""

from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from support.gradients import gradients_of
from support.reference import scaled_dot_product_attention

B, H, K, K_V = 2, 3, 5, 7


class Problem:
    """Queries, keys and values of random sequences, the second one shorter by padding.

    Attributes:
        upstream: The gradient of what the heads go into, float `(B, H, T, K_v)`.
        padding_mask: bool `(B, S)`.
        mask: bool `(B, 1, T, S)`: `allowed` `(T, S)`, causal and padding mask together.
    """

    def __init__(
        self,
        num_queries: int,
        num_keys: int,
        allowed: np.ndarray | bool = True,
        is_causal: bool = False,
        padding: int = 0,
        d_v: int = K_V,
    ) -> None:
        generator = np.random.default_rng(0)
        shapes = [(num_queries, K), (num_keys, K), (num_keys, d_v), (num_queries, d_v)]
        arrays = [generator.normal(size=(B, H, *shape)).astype("float32") for shape in shapes]
        *self.inputs, self.upstream = arrays
        is_past = np.arange(num_queries)[:, None] >= np.arange(num_keys)
        self.padding_mask = np.arange(num_keys) < np.array([[num_keys], [num_keys - padding]])
        self.mask = allowed & (is_past | (not is_causal)) & self.padding_mask[:, None, None, :]
        self.is_causal, self.has_padding = is_causal, padding > 0
        # A query without any key gives what it likes: nobody looks at it.
        self.upstream *= self.mask.any(-1, keepdims=True)

    def options(self) -> dict[str, Any]:
        """The masks by the names of the functions under test."""
        padding_mask = ops.convert_to_tensor(self.padding_mask) if self.has_padding else None
        return {"padding_mask": padding_mask, "use_causal_mask": self.is_causal}

    def by_hand(self) -> tuple[np.ndarray, ...]:
        """Sum of heads times upstream, and gradients of query, key and value, in float64."""
        query, key, value = (x.astype("float64") for x in self.inputs)
        heads, weights = scaled_dot_product_attention(query, key, value, self.mask)
        d_weights = self.upstream @ np.swapaxes(value, -1, -2)
        change = (d_weights * weights).sum(-1, keepdims=True)
        d_scores = weights * (d_weights - change) / K**0.5
        return (
            (heads * self.upstream).sum(),
            d_scores @ key,
            np.swapaxes(d_scores, -1, -2) @ query,
            np.swapaxes(weights, -1, -2) @ self.upstream,
        )

    def assert_solved_by(self, attend: Callable[..., Any]) -> None:
        """`attend(query, key, value, padding_mask=, use_causal_mask=)` gives all of that."""

        def total(query: Any, key: Any, value: Any) -> Any:
            heads = attend(query, key, value, **self.options())
            return ops.sum(heads * ops.convert_to_tensor(self.upstream))

        for found, expected in zip(gradients_of(total, *self.inputs), self.by_hand(), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)
