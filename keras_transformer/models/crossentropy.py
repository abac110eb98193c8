"""Computes the cross-entropy (§5.4), perplexity and accuracy over real tokens."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer._backend.operations import (
    custom_gradient,
    first_indices,
    label_logits,
    scalar,
    sequential_loop,
    softmax_parts,
)
from keras_transformer._backend.types import Size, Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class MaskedCrossentropy(keras.losses.Loss):
    """Computes the cross-entropy in nats over real target tokens, with label smoothing (§5.4).

    Padding is excluded from the sum and from the mean. The loss of a batch that has only padding
    is 0. It is NaN if a label that counts is outside the vocabulary. Label smoothing spreads the
    probability ε over the whole vocabulary, as in `torch.nn.CrossEntropyLoss`. The loss is computed
    in float32 under every dtype policy.

    With gradient accumulation, use `reduction="sum"`. Let the `sample_weight` of each token be the
    number of micro-batches per optimizer step, divided by the number of real tokens in the step.
    All real tokens of the step then count equally. `BatchPlan.batches()` yields these weights.

    Example:

    >>> model.compile(optimizer, loss=MaskedCrossentropy(label_smoothing=0.1))

    Args:
        label_smoothing: Float ε in [0, 1]. Defaults to 0; the paper uses 0.1.
        pad_id: Integer, the label of padding.
        reduction: `"mean_with_sample_weight"` (the weighted mean over real tokens), `"sum"` (the
            sum of the weighted token losses) or None (one value per token, (B, T)).
        name: String.

    Call arguments:
        y_true: Integer labels (B, T).
        y_pred: Float logits (B, T, V).
        sample_weight: Optional float weights (B, T) or (B,).

    Returns:
        float32 scalar or, with `reduction=None`, tensor (B, T), in nats.

    Source: Szegedy et al. 2016, Rethinking the Inception Architecture for Computer Vision, §7.
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        pad_id: int = 0,
        reduction: str | None = "mean_with_sample_weight",
        name: str = "masked_crossentropy",
    ) -> None:
        if reduction not in ("mean_with_sample_weight", "sum", "none", None):
            raise ValueError(
                "`reduction` must be 'mean_with_sample_weight' (the mean over real tokens), 'sum' "
                f"or None. Other reductions would count padding. Received: reduction={reduction!r}"
            )
        super().__init__(name=name, reduction=reduction, dtype="float32")
        self.label_smoothing = label_smoothing
        self.pad_id = pad_id

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Any:
        labels, weights = labels_and_weights(y_true, y_pred.shape[:-1], self.pad_id, sample_weight)
        return super().__call__(labels, y_pred, weights)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Any:
        """Returns the losses of all tokens, including padding, as a float32 tensor (B, T)."""
        return _token_crossentropy(y_true, y_pred, self.label_smoothing)

    def get_config(self) -> dict[str, Any]:
        own = {"label_smoothing": self.label_smoothing, "pad_id": self.pad_id}
        return {**own, "reduction": self.reduction, "name": self.name}


class TokenMean(keras.metrics.Mean):
    """Computes the mean of a value over the real target tokens of all batches, in float32.

    Subclasses define `token_values(y_true, y_pred)`, the float32 values (B, T) of all tokens.
    """

    def __init__(self, pad_id: int, name: str) -> None:
        super().__init__(name=name, dtype="float32")
        self.pad_id = pad_id

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> None:
        y_pred = ops.stop_gradient(ops.convert_to_tensor(y_pred))
        labels, weights = labels_and_weights(y_true, y_pred.shape[:-1], self.pad_id, sample_weight)
        self.add(ops.sum(weights * self.token_values(labels, y_pred)), ops.sum(weights))

    def add(self, total: Tensor, count: Tensor) -> None:
        """Updates the mean with a weighted sum of values, `total`, and the sum of the weights."""
        self.total.assign_add(total)
        self.count.assign_add(count)

    def get_config(self) -> dict[str, Any]:
        return {"pad_id": self.pad_id, "name": self.name}


@keras.saving.register_keras_serializable(package="keras_transformer")
class MaskedAccuracy(TokenMean):
    """Computes the share of real target tokens whose label has the highest logit, or 0 of none.

    For `pad_id` and the call arguments, see `MaskedCrossentropy`. The result is a float32 scalar.

    Example:

    >>> model.compile(optimizer, MaskedCrossentropy(), metrics=[MaskedAccuracy(), Perplexity()])
    """

    def __init__(self, pad_id: int = 0, name: str = "accuracy") -> None:
        super().__init__(pad_id, name)

    def token_values(self, y_true: Tensor, y_pred: Tensor) -> Any:
        prediction = ops.cast(ops.argmax(y_pred, axis=-1), "int32")
        return ops.cast(ops.equal(prediction, y_true), "float32")


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(TokenMean):
    """Computes the exponential of the mean cross-entropy over real target tokens.

    The cross-entropy has no label smoothing. The result is a float32 scalar: 1 if there are no
    tokens, and NaN if a label that counts is outside the vocabulary. For `pad_id` and the call
    arguments, see `MaskedCrossentropy`.
    """

    def __init__(self, pad_id: int = 0, name: str = "perplexity") -> None:
        super().__init__(pad_id, name)

    def token_values(self, y_true: Tensor, y_pred: Tensor) -> Any:
        return _token_crossentropy(y_true, y_pred)

    def crossentropy(self) -> Any:
        """Returns the mean cross-entropy in nats, also where its exponential overflows."""
        return super().result()

    def result(self) -> Any:
        return ops.exp(self.crossentropy())


def labels_and_weights(
    labels: Tensor, shape: Sequence[int | None], pad_id: int, sample_weight: Tensor | None = None
) -> tuple[Any, Any]:
    """Returns the label and the weight of each token, int32 and float32 tensors (B, T).

    `shape` is that of the tokens; a size may be None. Padding has the weight 0. The weights of
    other tokens are `sample_weight`, of shape (B, T) or (B,), or 1 if it is None. Labels of weight
    0 may be outside the vocabulary, and are set to 0.
    """
    labels = ops.cast(labels, "int32")  # in an unsigned dtype, -1 would be the largest label
    sizes = zip(labels.shape, shape, strict=False)
    if len(labels.shape) != len(shape) or any(None not in x and x[0] != x[1] for x in sizes):
        raise ValueError(
            f"`y_true` must have one label for each token, and so the shape {tuple(shape)}. "
            f"Received: shape={tuple(labels.shape)}"
        )
    weights = ops.cast(ops.not_equal(labels, pad_id), "float32")
    if sample_weight is not None:
        sample_weight = ops.cast(sample_weight, "float32")
        # In a step of TensorFlow for weights of both ranks, the rank is unknown, -1.
        if sample_weight.ndim in (-1, 1):
            sample_weight = ops.reshape(sample_weight, (ops.shape(labels)[0], -1))
        if sample_weight.ndim != len(labels.shape):
            raise ValueError(
                "`sample_weight` must have a weight for each token (B, T) or for each row (B,). "
                f"Received: shape={tuple(sample_weight.shape)}"
            )
        weights = weights * sample_weight
    return ops.where(weights != 0, labels, scalar(0, "int32")), weights


def _token_crossentropy(labels: Tensor, logits: Tensor, label_smoothing: float = 0.0) -> Any:
    """Computes the cross-entropy of each token in nats, a float32 tensor (B, T).

    In the smoothed target distribution, the label y has the probability 1 - ε + ε/V. Every other
    token has ε/V. The loss for logits z is logsumexp(z) - (1 - ε) z_y - ε mean(z).
    """
    logits = ops.cast(logits, "float32")
    expected = label_logits(logits, ops.cast(labels, "int32"))
    if label_smoothing:
        mean = ops.mean(logits, axis=-1)
        expected = (1.0 - label_smoothing) * expected + label_smoothing * mean
    return ops.logsumexp(logits, axis=-1) - expected


class SecondPass(NamedTuple):
    """What a second forward pass of the batch, with other dropout masks, adds to the loss.

    The passes give a token the distributions p and q. Its loss is (1 - share) times the
    cross-entropy of p, plus share times that of q, plus divergence KL(p, q) + reverse KL(q, p).
    """

    share: float
    divergence: float
    reverse: float

    @classmethod
    def r_drop(cls, alpha: float) -> "SecondPass":
        """Returns half of equation 4 of Liang et al. 2021, "R-Drop", with the weight α."""
        return cls(0.5, alpha / 4, alpha / 4)

    @classmethod
    def simcut(cls, alpha: float) -> "SecondPass":
        """Returns SimCut with the weight α, where q is of cut inputs (Gao et al. 2022, §3.2)."""
        return cls(0.0, alpha, 0.0)


class _Targets(NamedTuple):
    """What the distributions of the logits are compared with (see `sliced_crossentropy`)."""

    label_smoothing: float
    second_pass: SecondPass | None
    teacher: tuple[Tensor, ...]
    teacher_weight: float


def sliced_crossentropy(
    states: Tensor,
    embeddings: Tensor,
    labels: Tensor,
    weights: Tensor,
    slice_size: int,
    label_smoothing: float = 0.0,
    second_pass: SecondPass | None = None,
    teacher: tuple[Tensor, ...] = (),
    teacher_weight: float = 0.0,
    needs_gradient: bool = True,
) -> Any:
    """Computes the sum of all token losses, with the logits of only a few tokens in memory.

    Each iteration computes logits, loss and gradients of `slice_size` tokens, then discards the
    logits. The backward pass uses these gradients and computes no matrix product.

    Args:
        states: Float tensor (M, D), the decoder's output for M tokens. With `second_pass`, the
            shape is (2M, D): the output of the first forward pass, then that of the second.
        embeddings: The output projection, a float tensor (V, D) with the dtype of `states`.
        labels: Integer tensor (M,), 0 where the weight is 0.
        weights: float32 tensor (M,), the weight of each token's loss, without a gradient.
        slice_size: Number of tokens per iteration, at least 1.
        label_smoothing: Float ε in [0, 1].
        second_pass: What a second forward pass adds to the loss.
        teacher: States (M, D') and output projection (V, D') of a model whose predictions are part
            of the target distributions, without gradients.
        teacher_weight: Float in [0, 1], the share of the teacher in the target distribution of each
            token. The smoothed label has the rest.
        needs_gradient: If False, computes no gradients. This saves two matrix products per slice.

    Returns:
        float32 tensor (3,) with three weighted sums over the tokens: the smoothed loss (nats), the
        unsmoothed cross-entropy (nats) and the number of correct predictions. Only the smoothed
        loss has a gradient.
    """
    # Without this scaling, weights such as 1 / tokens make logit gradients underflow in float16.
    largest = ops.maximum(ops.max(ops.abs(weights)), scalar(1e-30, "float32"))
    targets = _Targets(label_smoothing, second_pass, teacher, teacher_weight)
    data = labels, weights / largest, slice_size, targets, needs_gradient
    if not needs_gradient:
        return largest * _loop(states, embeddings, *data)[0]

    @custom_gradient
    def sums(states: Tensor, embeddings: Tensor) -> Any:
        totals, d_states, d_embeddings = _loop(states, embeddings, *data)

        def gradient(*arguments: Any, upstream: Any = None) -> Any:
            upstream = arguments[-1] if upstream is None else upstream
            factor = largest * upstream[0]
            return tuple(ops.cast(factor * x, states.dtype) for x in (d_states, d_embeddings))

        return largest * totals, gradient

    return sums(states, embeddings)


def _loop(
    states: Tensor,
    embeddings: Tensor,
    labels: Tensor,
    weights: Tensor,
    size: int,
    targets: _Targets,
    needs_gradient: bool,
) -> tuple[Any, ...]:
    """Returns the sums and, if needed, the float32 gradients of `states` and `embeddings`."""
    passes = 2 if targets.second_pass else 1
    count = ops.shape(labels)[0]
    num_slices = -(-count // size)
    # Slices of nearly equal size have less padding. TensorFlow may know `count` only at run time.
    most = max if isinstance(count, int) else ops.maximum
    size = -(-count // most(num_slices, 1))
    added = num_slices * size - count  # padding tokens with weight 0

    def padded(states: Tensor) -> Tensor:
        states = ops.reshape(states, (passes, count, states.shape[-1]))
        return ops.pad(states, ((0, 0), (0, added), (0, 0)))

    def at(states: Tensor, start: Size) -> Tensor:
        width = states.shape[-1]
        x = ops.slice(states, first_indices(start, 1), (passes, size, width))
        return ops.reshape(x, (passes * size, width))

    states = padded(states)
    teacher = padded(ops.tile(targets.teacher[0], (passes, 1))) if targets.teacher else None
    labels, weights = (ops.pad(x, ((0, added),)) for x in (labels, weights))
    mean_embedding = ops.mean(ops.cast(embeddings, "float32"), axis=0)

    def body(index: Size, totals: Tensor, *gradients: Tensor) -> tuple[Any, ...]:
        start = index * size
        x = at(states, start)
        y, weight = (ops.slice(z, (start,), (size,)) for z in (labels, weights))
        of_teacher = None if teacher is None else at(teacher, start)
        y = ops.tile(y, passes)
        sums, d_logits = _sums(x, embeddings, mean_embedding, y, weight, targets, of_teacher)
        if needs_gradient:
            d_logits = ops.cast(d_logits, x.dtype)
            d_states = ops.cast(ops.matmul(d_logits, embeddings), "float32")
            d_embeddings = ops.cast(ops.matmul(ops.transpose(d_logits), x), "float32")
            d_states = ops.reshape(d_states, (passes, size, states.shape[-1]))
            gradients = (
                ops.slice_update(gradients[0], first_indices(start, 1), d_states),
                gradients[1] + d_embeddings,
            )
        return totals + sums, *gradients

    begin = [ops.zeros((3,), "float32")]
    if needs_gradient:
        begin += [ops.zeros(ops.shape(x), "float32") for x in (states, embeddings)]
    totals, *gradients = sequential_loop(num_slices, body, begin)
    if needs_gradient:
        gradients[0] = ops.reshape(gradients[0][:, :count], (passes * count, states.shape[-1]))
    return totals, *gradients


def _logits(states: Tensor, embeddings: Tensor) -> Any:
    return ops.cast(ops.matmul(states, ops.transpose(embeddings)), "float32")


def _sums(
    states: Tensor,
    embeddings: Tensor,
    mean_embedding: Tensor,
    labels: Tensor,
    weights: Tensor,
    targets: _Targets,
    teacher: Tensor | None,
) -> tuple[Any, Any]:
    """Returns the three sums for one slice, and the gradient of the loss with respect to logits.

    `teacher` has the teacher's states for the slice, if there is a teacher.
    """
    smoothing, second_pass = targets.label_smoothing, targets.second_pass
    logits = _logits(states, embeddings)
    largest, exponentials, total = softmax_parts(logits)
    normalizer = (largest + ops.log(total))[:, 0]
    of_label = label_logits(logits, labels)
    mean_logit = ops.matmul(ops.cast(states, "float32"), mean_embedding)
    loss = normalizer - (1.0 - smoothing) * of_label - smoothing * mean_logit
    spread = smoothing / embeddings.shape[0]
    is_label = ops.arange(embeddings.shape[0], dtype="int32") == labels[:, None]
    shares = weights
    if second_pass:
        shares = ops.concatenate([x * weights for x in (1 - second_pass.share, second_pass.share)])
    weight = shares[:, None]
    smoothed = ops.where(is_label, (1.0 - smoothing + spread) * weight, spread * weight)
    if teacher is not None:
        share = targets.teacher_weight
        _, soft, total_of_soft = softmax_parts(_logits(teacher, targets.teacher[1]))
        soft = soft / total_of_soft
        of_soft = ops.sum(soft * logits, axis=-1)
        loss = (1.0 - share) * loss + share * (normalizer - of_soft)
        smoothed = (1.0 - share) * smoothed + (share * weight) * soft
    d_logits = exponentials * (weight / total) - smoothed
    correct = ops.cast(of_label >= largest[:, 0], "float32")
    sums = [ops.sum(shares * x) for x in (loss, normalizer - of_label, correct)]
    if second_pass:
        log_p, log_q = ops.split(logits - normalizer[:, None], 2)
        p, q = ops.split(exponentials / total, 2)
        divergence, gradients = _divergence(log_p, log_q, p, q, second_pass)
        sums[0] += ops.sum(weights * divergence)
        d_logits += ops.concatenate([weights[:, None] * x for x in gradients])
    return ops.stack(sums), d_logits


def _divergence(
    log_p: Tensor, log_q: Tensor, p: Tensor, q: Tensor, second_pass: SecondPass
) -> tuple[Any, tuple[Any, Any]]:
    """Returns the weighted divergences, and their gradients with respect to both logits."""
    _, forward, reverse = second_pass
    difference = log_p - log_q
    from_p = ops.sum(p * difference, axis=-1, keepdims=True)  # KL(p, q)
    from_q = -ops.sum(q * difference, axis=-1, keepdims=True)  # KL(q, p)
    d_first = forward * p * (difference - from_p) + reverse * (p - q)
    d_second = forward * (q - p) + reverse * q * (-difference - from_q)
    return (forward * from_p + reverse * from_q)[:, 0], (d_first, d_second)
