"""Defines `Ensemble`, which decodes with several models as if they were one model."""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from keras import ops

from keras_transformer._backend.types import Ids, Tensor
from keras_transformer.capabilities import Capabilities
from keras_transformer.layers.attention.cache import Cache


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
        parts = [Capabilities.of(model) for model in models]
        shared: dict[str, set[Any]] = {
            "pad_id": {x.pad_id for x in parts},
            "reads_prompt": {x.reads_prompt for x in parts},
            "target vocabulary": {x.vocabulary_sizes[1] for x in parts} - {None},
        }
        for name, of_models in shared.items():
            if len(of_models) > 1:
                raise ValueError(
                    f"All models must have the same {name}. Received: {sorted(of_models)}"
                )
        self.pad_id = parts[0].pad_id
        self.max_length: int = min(model.max_length for model in models)
        self.reads_prompt = parts[0].reads_prompt
        self.accepts_any_shape = all(x.accepts_any_shape for x in parts)
        self.compiles = all(x.compiles for x in parts)
        self.jit_compile = all(x.jit_compile for x in parts)
        source_sizes = [x.vocabulary_size for x in parts if x.vocabulary_size is not None]
        self.vocabulary_size: int | None = min(source_sizes, default=None)
        self.target_vocabulary_size = parts[0].vocabulary_sizes[1]
        self.extend_cache = _of_all(_on_parts, [x.extend_cache for x in parts])
        self.limit_vocabulary = _of_all(_on_parts, [x.limit_vocabulary for x in parts])
        self.source_attention = _of_all(_mean, [x.source_attention for x in parts])

    @property
    def variables(self) -> list[Any]:
        return [variable for model in self.models for variable in model.variables]

    def init_cache(self, source_ids: Ids, max_length: int, beam_size: int = 1) -> Cache:
        """Returns the caches of all models as one, see `Cache.join`."""
        given = source_ids, max_length, beam_size
        return _join(model.init_cache(*given) for model in self.models)

    def step(
        self, token_ids: Ids, cache: Cache, position: Tensor, return_attention_weights: bool = False
    ) -> tuple[Any, ...]:
        """Returns logarithms of mean probabilities as logits, and mean attention weights."""
        options = {"return_attention_weights": True} if return_attention_weights else {}
        pairs = zip(self.models, cache.parts().values(), strict=True)
        found = [model.step(token_ids, part, position, **options) for model, part in pairs]
        logits, parts, *weights = zip(*found, strict=True)
        total = functools.reduce(ops.logaddexp, [ops.log_softmax(x, axis=-1) for x in logits])
        mean_weights = [sum(of_models) / len(of_models) for of_models in weights]
        return total - math.log(len(logits)), _join(parts), *mean_weights


def _of_all(function: Callable[..., Any], methods: Sequence[Any]) -> Callable[..., Any] | None:
    """Returns `function` of the methods of all models, or None if a model lacks the method."""
    return functools.partial(function, methods) if all(methods) else None


def _mean(methods: Sequence[Callable[..., Any]], *arguments: Any) -> Any:
    return sum(method(*arguments) for method in methods) / len(methods)


def _on_parts(methods: Sequence[Callable[..., Cache]], cache: Cache, argument: Any) -> Cache:
    """Calls the method of each model with the model's part of the cache."""
    pairs = zip(methods, cache.parts().values(), strict=True)
    return _join(method(part, argument) for method, part in pairs)


def _join(caches: Iterable[Cache]) -> Cache:
    return Cache.join(dict(enumerate(caches)))
