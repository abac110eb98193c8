"""The base class of the models that predict tokens, with the loss and metrics of tokens."""

import warnings
from typing import Any, ClassVar, Self

import keras
import numpy as np
from keras import ops

from keras_transformer._backend.operations import own_rows
from keras_transformer._backend.types import Tensor
from keras_transformer.capabilities import Capabilities
from keras_transformer.errors import check_ids
from keras_transformer.models.base import ConfiguredModel
from keras_transformer.models.crossentropy import MaskedAccuracy, MaskedCrossentropy, Perplexity

# What Keras calls the cross-entropy and the accuracy of integer labels, as a name without "_", or
# as a function, class or object.
_CROSSENTROPY = ("crossentropy", "ce", "sparsecategoricalcrossentropy")
_ACCURACY = ("accuracy", "acc", "sparsecategoricalaccuracy")
_TOKENS = ("source_ids", "target_ids", "token_ids", "labels")
# Inputs of packed rows: the number of the text of each token.
_SEGMENTS = {"source_segments", "target_segments", "token_segments"}
# Patterns of attention that depend on the distance of two tokens alone.
_PACKED_PATTERNS = {None, "full", "local"}
# Constructor arguments that come from the tokenizer and from other sections of a recipe, and one
# with which `SlicedLogitsTrainer` does not train.
_FROM_ELSEWHERE = {*"vocabulary_size target_vocabulary_size pad_id dtype logits_soft_cap".split()}


class TokenPredictor(ConfiguredModel):
    """Base class of the models whose output is the logits `(B, T, V)` of tokens.

    `compile("adam")` is enough: the loss is `MaskedCrossentropy()` and the metrics are
    `MaskedAccuracy()` and `Perplexity()`, with the `pad_id` of the model. If `fit` or `evaluate`
    gets no labels, the label of each token is the next one. `target_ids` are then bos, pieces and
    eos.

    `register_architecture` makes a class known to recipes, and sets `architecture`, its name there,
    and `presets`, the constructor arguments of published sizes.
    """

    architecture: ClassVar[str]
    presets: ClassVar[dict[str, dict[str, Any]]]
    pad_id: int
    packed_states_of: Any = None  # a function of the inputs of packed rows; None: there is none
    target_embedding: Any  # the layer that returns the logits of hidden states

    @classmethod
    def of_size(cls, preset: str, vocabulary_size: int, **changes: Any) -> Self:
        """Creates a model with the `presets` of a published size and random weights.

        `**changes` are constructor arguments, which replace those of the published size.
        """
        return cls(vocabulary_size, **{**cls.presets[preset], **changes})

    @classmethod
    def settings(cls) -> set[str]:
        """Returns the constructor arguments that the section `model` of a recipe can set."""
        return set(cls.argument_names()) - _FROM_ELSEWHERE

    def call(self, inputs: Any, training: Any = None, mask: Any = None, **kwargs: Any) -> Any:
        if is_packed(self, inputs):
            return self.target_embedding(self.packed_states(inputs), reverse=True)
        return super().call(inputs, training=training, mask=mask, **kwargs)

    def packed_states(self, inputs: dict[str, Tensor]) -> Any:
        """Returns the hidden states `(B, T, D)` of rows with several texts.

        `inputs` has segments, int `(B, T)`, beside the ids of each side: `source_segments` and
        `target_segments`, or `token_segments`. Tokens of a row with the same segment are a text, or
        the two sides of a pair. They attend only to each other, and their positions begin at 0.
        Padding has the segment 0. Raises `ValueError` if the model does not take such rows.
        """
        self.check_packing()
        return self.packed_states_of(**inputs)

    def check_packing(self) -> None:
        """Raises `ValueError` if the model does not take rows with several texts."""
        patterns: Any = vars(self).get("attention_pattern")
        patterns = {*patterns} if isinstance(patterns, list) else {patterns}
        if self.packed_states_of is None or not patterns <= _PACKED_PATTERNS:
            raise ValueError(
                "Only `Transformer` and `LanguageModel` take rows of several texts (packing), with "
                f"an `attention_pattern` of {_PACKED_PATTERNS} and layers whose `call` takes an "
                f"`attention_mask`. Received: {type(self).__name__} with attention_pattern="
                f"{patterns}, decoder_layer={vars(self).get('decoder_layer')}"
            )

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        **kwargs: Any,
    ) -> None:
        """Sets optimizer, loss and metrics (see `keras.Model.compile`).

        Without a `loss`, the metrics also have defaults. Keras's names for the cross-entropy and
        the accuracy of integer labels, and its objects, count real tokens only, and take logits.
        Other losses and metrics of Keras would count padding, and raise `ValueError`.
        """
        if loss is None:
            loss = MaskedCrossentropy(pad_id=self.pad_id)
            if metrics is None and weighted_metrics is None:
                weighted_metrics = [MaskedAccuracy(self.pad_id), Perplexity(self.pad_id)]
        loss = keras.tree.map_structure(self._token_loss, loss)
        metrics, weighted_metrics = (
            keras.tree.map_structure(self._token_metric, x) for x in (metrics, weighted_metrics)
        )
        super().compile(optimizer, loss, loss_weights, metrics, weighted_metrics, **kwargs)

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles a loaded model. Keras's method does nothing if `compile` is overridden."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)

    def _token_loss(self, loss: Any) -> Any:
        """Returns a loss over real tokens for one of Keras's, and others as they are."""
        if not self._is_of_keras(loss, _CROSSENTROPY):
            return loss
        reduction = getattr(loss, "reduction", "mean")
        if reduction in ("mean", "sum_over_batch_size"):
            reduction = "mean_with_sample_weight"
        return MaskedCrossentropy(pad_id=self.pad_id, reduction=reduction)

    def _token_metric(self, metric: Any) -> Any:
        """Returns a metric over real tokens for one of Keras's, and others as they are."""
        if not self._is_of_keras(metric, _ACCURACY):
            return metric
        name = metric if isinstance(metric, str) else getattr(metric, "name", "accuracy")
        return MaskedAccuracy(self.pad_id, name=name)

    def _is_of_keras(self, counted: Any, names: tuple[str, ...]) -> bool:
        """Returns whether a loss or metric is Keras's. If so, raises `ValueError` for other names.

        Also raises `ValueError` if the loss or metric has another padding than the model.
        """
        padding = getattr(counted, "pad_id", getattr(counted, "ignore_class", None))
        if padding not in (None, self.pad_id):
            raise ValueError(
                "The loss and the metrics must have the model's padding. "
                f"Received: pad_id={padding} of {type(counted).__name__}, "
                f"pad_id={self.pad_id} of the model"
            )
        owner = counted if hasattr(counted, "__name__") else type(counted)
        name = counted if isinstance(counted, str) else owner.__name__
        if not isinstance(counted, str) and not owner.__module__.startswith("keras."):
            return False
        if name.lower().replace("_", "") not in names:
            raise ValueError(
                "The model's outputs are logits of tokens, and losses and metrics of Keras would "
                "count padding. Use 'sparse_categorical_crossentropy' or MaskedCrossentropy as "
                "loss, 'accuracy', MaskedAccuracy or Perplexity as metric, or a function of your "
                f"own. Received: {name}"
            )
        return True

    def check_data(self, x: Any, y: Any, sample_weight: Any) -> None:
        """Checks arrays, or the first batch of a `PyDataset`, before Keras takes them."""
        data = x[0] if isinstance(x, keras.utils.PyDataset) else (x, y, sample_weight)
        check_tokens(self, *keras.utils.unpack_x_y_sample_weight(data))

    def _symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Builds loss and metrics from the first batch, as Keras does, after a look at its tokens.

        TensorFlow does without. It finds ids outside the vocabulary itself.
        """
        if iterator is not None and not self._compile_loss.built:
            _, _, batches = next(iter(iterator))
            data_batch = next(iter(batches))  # There may be no end of batches.
            check_tokens(self, *keras.utils.unpack_x_y_sample_weight(data_batch))
        super()._symbolic_build(iterator, data_batch)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """Computes the loss (see `keras.Model.compute_loss`)."""
        return super().compute_loss(x, self.labels(x, y), y_pred, sample_weight, training)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Updates and returns the metrics (see `keras.Model.compute_metrics`)."""
        return super().compute_metrics(x, self.labels(x, y), y_pred, sample_weight)

    def labels(self, inputs: Any, given: Any = None) -> Any:
        """Returns the `given` labels or, if they are None, the token after each input token.

        These are int32 `(B, T)`. The last token of a row or segment has the label `pad_id`.
        """
        return next_tokens(self, inputs) if given is None else given


def by_name(model: Any, inputs: Any) -> dict[str, Any]:
    """Returns the inputs of a functional model, which may be a list, by their names."""
    names = [x.name for x in model.inputs]
    flat = dict(zip(names, keras.tree.flatten(inputs), strict=False))
    return inputs if isinstance(inputs, dict) else flat


def next_tokens(model: Any, inputs: Any) -> Any:
    """Returns the token after each token of the last of a model's `inputs`, int32 `(B, T)`."""
    name, inputs = model.inputs[-1].name, by_name(model, inputs)
    ids, segments = ops.cast(inputs[name], "int32"), inputs.get(name.replace("ids", "segments"))
    padding, following = ops.full_like(ids, model.pad_id), ids[:, 1:]
    if segments is not None:
        following = ops.where(segments[:, 1:] == segments[:, :-1], following, padding[:, 1:])
    return ops.concatenate([following, padding[:, :1]], axis=1)


def is_packed(model: Any, inputs: Any) -> bool:
    """Returns whether rows have several texts: `inputs` has segments that the graph has not."""
    given = _SEGMENTS.intersection(inputs if isinstance(inputs, dict) else ())
    return not given <= {x.name for x in model.inputs}


def check_tokens(model: Any, x: Any, y: Any = None, sample_weight: Any = None) -> None:
    """Raises `ValueError` for ids and labels outside the vocabulary, in arrays.

    Also raises `ValueError` for labels that are the input tokens, and warns of targets without bos.
    """
    last, size = model.inputs[-1].name, model.outputs[0].shape[-1]
    arrays = {
        name: own_rows(array) if ops.is_tensor(array) else np.asarray(array)
        for name, array in {**by_name(model, x), "labels": y}.items()
        if name in _TOKENS and len(getattr(array, "shape", ())) == 2
    }
    labels, inputs = arrays.get("labels"), arrays.get(last)
    if sample_weight is not None:  # A label of weight 0 may have any value.
        arrays.pop("labels", None)
    for name, array in arrays.items():
        end = Capabilities.of(model).vocabulary_size or size if name == "source_ids" else size
        check_ids(end, **{name: array if model.pad_id >= 0 else array[array != model.pad_id]})
    if not (labels is None or inputs is None) and np.array_equal(labels, inputs):
        raise ValueError(
            f"The labels equal `{last}`, so the model would learn to copy. The label of a "
            "token is the next token: leave `y` out, or shift it. "
            f"Received: y={labels[:1]}"
        )
    targets = arrays.get("target_ids", np.zeros((0, 1)))
    first = targets[(targets != model.pad_id).any(axis=1), :1]  # Rows of padding fill a batch.
    if (first != first[:1]).any():
        warnings.warn(
            "The rows of `target_ids` begin with different ids. Each must begin with bos, or the "
            f"model does not learn the first token. Received: {np.unique(first)}",
            stacklevel=4,
        )
