"""Which positions attend to which, as an object that computes it."""

from typing import Any

import keras


@keras.saving.register_keras_serializable(package="keras_transformer")
class AttentionPattern:
    """Base class of the ways in which `MultiHeadAttention` attends over long sequences (§4).

    A pattern is a rule about the distance from a key to a query, and a way to compute attention by
    that rule without the scores of all queries and keys in memory. It has no weights: the same
    `MultiHeadAttention` can be given another one. Patterns are dataclasses whose fields are sizes
    in tokens, at least 1.

    Call arguments:
        query: float tensor `(B, H, T, K)`.
        key: float tensor `(B, H, S, K)`.
        value: float tensor `(B, H, S, K_v)`.
        padding_mask: bool tensor `(B, S)`, True where a key is a real token. Defaults to None.
        use_causal_mask: Whether position t attends only to positions up to t. Defaults to False.
        use_scale: Whether scores are divided by sqrt(K). Defaults to True.
        dropout: The `Dropout` of the weights. Defaults to None.
        training: Whether to drop. Defaults to False.

    Returns:
        A float tensor `(B, H, T, K_v)`. Queries that may attend to nothing get finite numbers.

    Raises:
        ValueError: If a size is less than 1.
    """

    def __post_init__(self) -> None:
        for name, size in self.get_config().items():
            if size < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={size}")

    def __call__(
        self,
        query: Any,
        key: Any,
        value: Any,
        padding_mask: Any = None,
        use_causal_mask: bool = False,
        use_scale: bool = True,
        dropout: Any = None,
        training: bool = False,
    ) -> Any:
        raise NotImplementedError

    def allows(self, distance: Any) -> Any:
        """Tells which distances the pattern has; masks are not its affair.

        Args:
            distance: int tensor, the query's position less the key's.

        Returns:
            A bool tensor of the same shape.
        """
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "AttentionPattern":
        return cls(**config)
