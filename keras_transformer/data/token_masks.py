"""Masks tokens for BERT."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.errors import check_ids


def mask_tokens(
    token_ids: Any,
    generator: np.random.Generator,
    vocabulary_size: int,
    mask_id: int,
    special_ids: Sequence[int] = (PAD_ID, UNK_ID, BOS_ID, EOS_ID),
    rate: float = 0.15,
    pad_id: int = PAD_ID,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Chooses random tokens of each row and hides most of them (BERT, §3.1 and appendix A.1).

    Of the chosen tokens, 80 % are replaced by `mask_id`, 10 % by a random token, and 10 % are kept.
    Call the function for each batch, so that each pass over the data has other masks.

    Example:

    >>> inputs, labels = mask_tokens(token_ids, np.random.default_rng(0), 8_000, mask_id=7_999)

    Args:
        token_ids: int array `(B, S)`.
        generator: NumPy's random generator.
        vocabulary_size: Size V of the vocabulary. Random tokens are drawn from the ids below V,
            without `special_ids` and `mask_id`.
        mask_id: Id of the mask token.
        special_ids: Ids that are never chosen, beside `pad_id` and `mask_id`. Defaults to pad, unk,
            bos and eos of `Tokenizer`.
        rate: Fraction of the other tokens to choose, in (0, 1], at least one. Defaults to 0.15.
        pad_id: Id of padding. Defaults to 0.

    Returns:
        The inputs `{"token_ids": int32 (B, S), "masked_positions": int32 (B, M)}` and the labels,
        int32 `(B, M)`, where M is max(1, round(rate * S)). A row with fewer than M chosen tokens
        has the position 0 and the label `pad_id` in the rest.

    Raises:
        ValueError: If `rate` is out of range, or an id is no integer or outside the vocabulary.

    Source: Devlin et al. 2019; for new masks in each pass, Liu et al. 2019 (RoBERTa).
    """
    if not 0.0 < rate <= 1.0:
        raise ValueError(f"`rate` must be above 0 and at most 1. Received: rate={rate}")
    token_ids = np.asarray(token_ids)
    real = token_ids[token_ids != pad_id]
    check_ids(vocabulary_size, token_ids=real, mask_id=np.asarray(mask_id))
    special = [*special_ids, pad_id, mask_id]
    ordinary = np.setdiff1d(np.arange(vocabulary_size), special)
    token_ids = token_ids.astype("int32")
    most = max(1, round(rate * token_ids.shape[1]))
    may_choose = ~np.isin(token_ids, special)
    order = np.where(may_choose, generator.random(token_ids.shape), 2.0).argsort(axis=1)
    positions = order[:, :most].astype("int32")
    available = may_choose.sum(axis=1, keepdims=True)
    count = np.minimum(np.maximum(np.rint(rate * available), 1), available)  # (B, 1)
    is_chosen = np.arange(positions.shape[1]) < count  # (B, M)
    labels = np.where(is_chosen, np.take_along_axis(token_ids, positions, axis=1), pad_id)
    kind = generator.random(positions.shape)
    random_ids = generator.choice(ordinary, positions.shape)
    hidden = np.where(kind < 0.8, mask_id, np.where(kind < 0.9, random_ids, labels))
    rows = np.nonzero(is_chosen)[0]
    masked = token_ids.copy()
    masked[rows, positions[is_chosen]] = hidden[is_chosen]
    inputs = {"token_ids": masked, "masked_positions": np.where(is_chosen, positions, 0)}
    return inputs, labels
