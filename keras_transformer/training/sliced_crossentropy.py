"""Projection to the vocabulary and its cross-entropy, a slice of the tokens at a time."""

from typing import Any

from keras import ops

from keras_transformer._backend.operations import sequential_loop


def sliced_crossentropy(
    states: Any,
    embeddings: Any,
    labels: Any,
    weights: Any,
    slice_size: int,
    label_smoothing: float = 0.0,
    r_drop: float = 0.0,
    needs_gradient: bool = True,
) -> Any:
    """Sums the cross-entropy of tokens and never holds more than a slice of their logits.

    The gradient of a slice is known as soon as its logits are. So it is computed at once and the
    logits are forgotten: there are three products with the embeddings, as without slices, and
    `slice_size` rows of the vocabulary in memory.

    With `r_drop` every token has two states, of two passes with different dropout. Its losses are
    the mean of both, and `r_drop` times the mean of the two Kullback-Leibler divergences between
    their distributions, halved, is added to the first.

    Args:
        states: float tensor `(M, D)`, the decoder's output for M tokens; with `r_drop` `(2M, D)`,
            one pass after the other.
        embeddings: float tensor `(V, D)` in the dtype of `states`, the output projection.
        labels: int tensor `(M,)`.
        weights: float32 tensor `(M,)`, at least 0; 0 for padding. Constants to differentiation.
        slice_size: Tokens of a slice, at least 1.
        label_smoothing: Float in [0, 1]. Defaults to 0.
        r_drop: Weight of the divergence between two passes, at least 0. Defaults to 0: one pass.
        needs_gradient: False where nothing is differentiated; that saves two products. Defaults to
            True.

    Returns:
        float32 tensor `(3,)`, weighted sums over the tokens: of the smoothed loss in nats, of the
        cross-entropy in nats, and of those for which no token is likelier than the label. Only the
        first has a gradient.

    Source: Liang et al. 2021, "R-Drop", eq. 4, halved.
    """
    # float16 could not hold the gradients of the logits if their weights were those of a mean.
    largest = ops.maximum(ops.max(weights), 1e-30)
    data = (labels, weights / largest, slice_size, label_smoothing, r_drop)
    if not needs_gradient:
        return largest * _loop(states, embeddings, *data, needs_gradient=False)[0]

    @ops.custom_gradient
    def sums(states: Any, embeddings: Any) -> Any:
        totals, d_states, d_embeddings = _loop(states, embeddings, *data, needs_gradient=True)

        def gradient(*arguments: Any, upstream: Any = None) -> Any:
            upstream = arguments[-1] if upstream is None else upstream
            factor = largest * upstream[0]
            return tuple(ops.cast(factor * x, states.dtype) for x in (d_states, d_embeddings))

        return largest * totals, gradient

    return sums(states, embeddings)


def _loop(
    states: Any,
    embeddings: Any,
    labels: Any,
    weights: Any,
    size: int,
    label_smoothing: float,
    r_drop: float,
    needs_gradient: bool,
) -> tuple[Any, ...]:
    """The sums, and with `needs_gradient` their first one's gradients, float32."""
    passes = 2 if r_drop else 1
    count = ops.shape(labels)[0]
    num_slices = -(-count // size)
    added = num_slices * size - count  # tokens of weight 0
    states = ops.reshape(states, (passes, count, states.shape[-1]))
    states = ops.pad(states, ((0, 0), (0, added), (0, 0)))
    labels, weights = (ops.pad(x, ((0, added),)) for x in (labels, weights / passes))
    mean_embedding = ops.mean(ops.cast(embeddings, "float32"), axis=0)

    def body(index: Any, totals: Any, *gradients: Any) -> tuple[Any, ...]:
        start = index * size
        x = ops.slice(states, (0, start, 0), (passes, size, states.shape[-1]))
        x = ops.reshape(x, (passes * size, states.shape[-1]))
        y, weight = (ops.tile(ops.slice(z, (start,), (size,)), passes) for z in (labels, weights))
        sums, d_logits = _sums(x, embeddings, mean_embedding, y, weight, label_smoothing, r_drop)
        if needs_gradient:
            d_logits = ops.cast(d_logits, x.dtype)
            d_states = ops.cast(ops.matmul(d_logits, embeddings), "float32")
            d_embeddings = ops.cast(ops.matmul(ops.transpose(d_logits), x), "float32")
            d_states = ops.reshape(d_states, (passes, size, states.shape[-1]))
            gradients = (
                ops.slice_update(gradients[0], (0, start, 0), d_states),
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


def _sums(
    states: Any,
    embeddings: Any,
    mean_embedding: Any,
    labels: Any,
    weights: Any,
    label_smoothing: float,
    r_drop: float,
) -> tuple[Any, Any]:
    """The sums of a slice, and the gradient of the first with respect to its logits."""
    logits = ops.cast(ops.matmul(states, ops.transpose(embeddings)), "float32")
    largest = ops.max(logits, axis=-1, keepdims=True)
    exponentials = ops.exp(logits - largest)
    total = ops.sum(exponentials, axis=-1, keepdims=True)
    normalizer = (largest + ops.log(total))[:, 0]
    of_label = ops.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    mean_logit = ops.matmul(ops.cast(states, "float32"), mean_embedding)
    loss = normalizer - (1.0 - label_smoothing) * of_label - label_smoothing * mean_logit
    spread = label_smoothing / embeddings.shape[0]
    is_label = ops.arange(embeddings.shape[0], dtype="int32") == labels[:, None]
    weight = weights[:, None]
    smoothed = ops.where(is_label, (1.0 - label_smoothing + spread) * weight, spread * weight)
    d_logits = exponentials * (weight / total) - smoothed
    if r_drop:
        divergence, d_divergence = _divergence(logits - normalizer[:, None], exponentials / total)
        loss = loss + r_drop / 4 * divergence
        d_logits = d_logits + r_drop / 2 * weight * d_divergence
    correct = ops.cast(of_label >= largest[:, 0], "float32")
    values = (loss, normalizer - of_label, correct)
    return ops.stack([ops.sum(weights * x) for x in values]), d_logits


def _divergence(log_probabilities: Any, probabilities: Any) -> tuple[Any, Any]:
    """KL(p, q) + KL(q, p) of two passes, once for each, and its gradient by their logits."""
    first, second = ops.split(log_probabilities, 2)
    p, q = ops.split(probabilities, 2)
    difference = first - second
    from_p = ops.sum(p * difference, axis=-1, keepdims=True)
    from_q = -ops.sum(q * difference, axis=-1, keepdims=True)
    gradients = (p * (difference - from_p) + p - q, q * (-difference - from_q) + q - p)
    divergence = (from_p + from_q)[:, 0]
    return ops.concatenate([divergence, divergence]), ops.concatenate(gradients)
