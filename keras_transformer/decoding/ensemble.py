"""Defines `Ensemble`, which decodes with several models as if they were one model."""

import functools
import math
from collections.abc import Callable, Sequence
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

    Attributes:
        models: The models.
        variables: The variables of all models.
        max_length: The smallest `max_length` of the models, in tokens.

    Raises:
        ValueError: If there is no model, or if the models have different values of `pad_id` or
            `reads_prompt`, or target vocabularies of different sizes.

    Source: Sutskever et al. 2014, §3.6.
    """

    def __init__(self, models: Sequence[Any]) -> None:
        if not models:
            raise ValueError(f"`models` must hold at least one model. Received: models={models}")
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

    @property
    def variables(self) -> list[Any]:
        return [variable for model in self.models for variable in model.variables]

    @property
    def max_length(self) -> int:
        return min(model.max_length for model in self.models)

    @property
    def pad_id(self) -> int:
        return self.models[0].pad_id

    @property
    def reads_prompt(self) -> bool:
        return getattr(self.models[0], "reads_prompt", False)

    @property
    def accepts_any_shape(self) -> bool:
        return all(getattr(model, "accepts_any_shape", False) for model in self.models)

    @property
    def compiles(self) -> bool:
        return all(getattr(model, "compiles", True) for model in self.models)

    @property
    def vocabulary_size(self) -> int:
        return min(model.vocabulary_size for model in self.models)

    @property
    def target_vocabulary_size(self) -> int | None:
        return vocabulary_sizes(self.models[0])[1]

    # The methods that not every model has are properties, so that `hasattr` tells whether all have.

    @property
    def source_attention(self) -> Callable[[Any, Any], Any]:
        """Function that averages the results of the models' `source_attention`."""
        attentions = [model.source_attention for model in self.models]
        return lambda *ids: sum(attend(*ids) for attend in attentions) / len(attentions)

    @property
    def extend_cache(self) -> Callable[[Cache, int], Cache]:
        """Function that calls each model's `extend_cache`."""
        return _on_parts([model.extend_cache for model in self.models])

    @property
    def limit_vocabulary(self) -> Callable[[Cache, Any], Cache]:
        """Function that calls each model's `limit_vocabulary`."""
        return _on_parts([model.limit_vocabulary for model in self.models])

    def init_cache(self, source_ids: Any, max_length: int, beam_size: int = 1) -> Cache:
        """Returns a `Cache` whose fields are lists with one entry per model (see `Searchable`)."""
        return _join([model.init_cache(source_ids, max_length, beam_size) for model in self.models])

    def step(
        self, token_ids: Any, cache: Cache, position: Any, return_attention_weights: bool = False
    ) -> tuple[Any, ...]:
        """Predicts the next token of every beam (see `Searchable.step`).

        The logits are the logarithms of the mean probabilities. The returned attention weights are
        the mean of the models' attention weights.
        """
        options = {"return_attention_weights": True} if return_attention_weights else {}
        logits, parts, *weights = zip(
            *(
                model.step(token_ids, part, position, **options)
                for model, part in zip(self.models, _split(cache, len(self.models)), strict=True)
            ),
            strict=True,
        )
        total = functools.reduce(ops.logaddexp, [ops.log_softmax(x, axis=-1) for x in logits])
        mean_weights = [sum(of_models) / len(of_models) for of_models in weights]
        return total - math.log(len(logits)), _join(parts), *mean_weights


def _on_parts(methods: Sequence[Callable[[Cache, Any], Cache]]) -> Callable[[Cache, Any], Cache]:
    """Returns a function that calls each model's method with the model's part of the cache."""

    def call(cache: Cache, argument: Any) -> Cache:
        parts = zip(methods, _split(cache, len(methods)), strict=True)
        return _join([method(part, argument) for method, part in parts])

    return call


def _join(caches: Sequence[Cache]) -> Cache:
    """Returns a single cache whose fields are lists with one entry per model."""
    return Cache(*map(list, zip(*caches, strict=True)))


def _split(cache: Cache, count: int) -> list[Cache]:
    return [Cache(*(part[index] for part in cache)) for index in range(count)]
