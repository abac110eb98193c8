"""Defines `Ensemble`, which decodes with several models as if they were one model."""

import functools
import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_transformer.layers.attention.cache import Cache
from keras_transformer.models.protocol import vocabulary_sizes


class Ensemble:
    """Averages the probabilities that several models predict for the next token.

    `search` accepts an ensemble instead of a model. The models may have different architectures and
    sizes. But each source id and each target id must stand for the same token in all models.

    Example:

    >>> ensemble = Ensemble([first_model, second_model])
    >>> result = compile_function(search, ensemble)(source_ids, max_length=60)

    Args:
        models: One or more models. Each model implements `Searchable` (`models/protocol.py`).

    Raises:
        ValueError: If the models have different values of `pad_id` or `reads_prompt`, or target
            vocabularies of different sizes.

    Source: Sutskever et al. 2014, §3.6.
    """

    def __init__(self, models: Sequence[Any]) -> None:
        self.models = list(models)
        for name, of_models in {
            "pad_id": {model.pad_id for model in models},
            "reads_prompt": {getattr(model, "reads_prompt", False) for model in models},
            "target vocabulary": {vocabulary_sizes(model)[1] for model in models} - {None},
        }.items():
            if len(of_models) > 1:
                raise ValueError(
                    f"All models must have the same {name}. Received: {sorted(of_models)}"
                )
        self.pad_id: int = models[0].pad_id
        self.max_length: int = min(model.max_length for model in models)
        self.reads_prompt: bool = getattr(models[0], "reads_prompt", False)
        self.accepts_any_shape = all(getattr(x, "accepts_any_shape", False) for x in models)
        self.compiles = all(getattr(model, "compiles", True) for model in models)
        source_sizes = [size for size, _ in map(vocabulary_sizes, models) if size is not None]
        self.vocabulary_size: int | None = min(source_sizes, default=None)
        self.target_vocabulary_size: int | None = vocabulary_sizes(models[0])[1]
        # Methods that not every model has.
        if all(hasattr(model, "source_attention") for model in models):
            self.source_attention = self._mean_source_attention
        for name in ("extend_cache", "limit_vocabulary"):
            if all(hasattr(model, name) for model in models):
                setattr(self, name, functools.partial(self._on_parts, name))

    @property
    def variables(self) -> list[Any]:
        return [variable for model in self.models for variable in model.variables]

    def init_cache(self, source_ids: Any, max_length: int, beam_size: int = 1) -> Cache:
        """Returns a `Cache` whose fields are lists with one entry per model (see `Searchable`)."""
        return _join([model.init_cache(source_ids, max_length, beam_size) for model in self.models])

    def step(
        self, token_ids: Any, cache: Cache, position: Any, return_attention_weights: bool = False
    ) -> tuple[Any, ...]:
        """Returns logarithms of mean probabilities as logits, and mean attention weights."""
        options = {"return_attention_weights": True} if return_attention_weights else {}
        pairs = zip(self.models, _split(cache), strict=True)
        found = [model.step(token_ids, part, position, **options) for model, part in pairs]
        logits, parts, *weights = zip(*found, strict=True)
        total = functools.reduce(ops.logaddexp, [ops.log_softmax(x, axis=-1) for x in logits])
        mean_weights = [sum(of_models) / len(of_models) for of_models in weights]
        return total - math.log(len(logits)), _join(parts), *mean_weights

    def _mean_source_attention(self, source_ids: Any, target_ids: Any) -> Any:
        attentions = [model.source_attention(source_ids, target_ids) for model in self.models]
        return sum(attentions) / len(attentions)

    def _on_parts(self, method: str, cache: Cache, argument: Any) -> Cache:
        """Calls a method of each model with the model's part of the cache."""
        pairs = zip(self.models, _split(cache), strict=True)
        return _join([getattr(model, method)(part, argument) for model, part in pairs])


def _join(caches: Sequence[Cache]) -> Cache:
    """Returns a single cache whose fields are lists with one entry per model."""
    return Cache(*map(list, zip(*caches, strict=True)))


def _split(cache: Cache) -> list[Cache]:
    return [Cache(*parts) for parts in zip(*cache, strict=True)]
