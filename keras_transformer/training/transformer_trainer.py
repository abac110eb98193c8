"""A Transformer in training, without its logits."""

from typing import Any

import keras
from keras import ops

from keras_transformer._backend.gradient_checkpointing import recomputation
from keras_transformer.layers.encoder import EncoderLayer
from keras_transformer.models.transformer import Transformer
from keras_transformer.training.masked_accuracy import MaskedAccuracy
from keras_transformer.training.masked_crossentropy import MaskedCrossentropy, token_weights
from keras_transformer.training.perplexity import Perplexity
from keras_transformer.training.sliced_crossentropy import sliced_crossentropy

# Of the logits of a slice.
_BYTES = 4


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerTrainer(keras.Model):
    """Trains a `Transformer` and never holds more than a slice of its logits.

    The logits of a batch are its largest tensor by far: 3 GiB for 25,000 tokens and a vocabulary
    of 37,000, as much again for their gradient, and most of the time goes into moving them. This
    model has the layers and the weights of `model`, gives the decoder's output instead, and takes
    the projection to the vocabulary into the loss, see `sliced_crossentropy`. Loss, metrics and
    gradients are those of `model` compiled with `loss` and, as `weighted_metrics`,
    `MaskedAccuracy` and `Perplexity`.

    Example:

    ```python
    trainer = TransformerTrainer(model, MaskedCrossentropy(label_smoothing=0.1))
    trainer.compile(TransformerAdam(TransformerSchedule(d_model=model.d_model)))
    trainer.fit({"source_ids": source_ids, "target_ids": target_ids}, labels)
    model.save("model.keras")
    ```

    Args:
        model: The `Transformer`.
        loss: `MaskedCrossentropy`, with a mean or a sum. Defaults to that with its defaults.
        logits_mebibytes: Memory for the logits of a slice, in MiB. A slice has at least D tokens,
            as many as make it as large as the embeddings; with fewer, summing up the gradient of
            the embeddings would take longer than the products. Defaults to 16.
        r_drop: Weight α of R-Drop (Liang et al. 2021), at least 0: every batch passes the model
            twice with different dropout, and where the two distributions of a token differ, that
            is part of the loss. It makes a step twice as long and small data go further; 5 is
            their value for translation. Defaults to 0: one pass.
        recomputation: Whether encoder and decoder layers forget in training what they compute, and
            compute it again for the gradient: less memory, more time, the same numbers. Defaults
            to False.

    Call arguments:
        inputs: As for `Transformer`.

    Returns:
        The decoder's output, a float tensor `(B, T, D)`; in training with `r_drop` `(2B, T, D)`.

    Raises:
        ValueError: If `loss` is not a mean or a sum over tokens.
    """

    # Replaced where tokens are on several devices, see `training.distribution`.
    crossentropy = staticmethod(sliced_crossentropy)

    def __init__(
        self,
        model: Transformer,
        loss: MaskedCrossentropy | None = None,
        logits_mebibytes: int = 16,
        r_drop: float = 0.0,
        recomputation: bool = False,
        **kwargs: Any,
    ) -> None:
        loss = loss or MaskedCrossentropy(pad_id=model.pad_id)
        if loss.reduction not in ("mean_with_sample_weight", "sum"):
            raise ValueError(
                "`loss.reduction` must be 'mean_with_sample_weight' or 'sum'. "
                f"Received: loss.reduction={loss.reduction!r}"
            )
        super().__init__(model.input, model.states, **kwargs)
        self.dtype_policy = model.dtype_policy  # by which Keras scales the loss for float16
        self.model = model
        self.token_loss = loss
        self.logits_mebibytes = logits_mebibytes
        self.r_drop = r_drop
        self.recomputation = recomputation
        self.accuracy = MaskedAccuracy(loss.pad_id)
        self.perplexity = Perplexity(loss.pad_id)

    @property
    def slice_size(self) -> int:
        """Tokens whose logits are held at a time."""
        embedding = self.model.target_embedding
        row = _BYTES * embedding.vocabulary_size
        return max(embedding.d_model, self.logits_mebibytes * 2**20 // row)

    def call(self, inputs: Any, training: bool | None = None, **kwargs: Any) -> Any:
        if training and self.r_drop:
            inputs = keras.tree.map_structure(lambda x: ops.concatenate([x, x]), inputs)
        with recomputation(self._forgetful_layers() if training else ()):
            return super().call(inputs, training=training, **kwargs)

    def _forgetful_layers(self) -> list[Any]:
        if not self.recomputation:
            return []
        return [layer for layer in self.layers if isinstance(layer, EncoderLayer)]

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """Returns the loss, float32 `()`, and updates the metrics."""
        weights = token_weights(y, self.token_loss.pad_id, sample_weight)
        total = ops.sum(weights)
        sums = self.crossentropy(
            ops.reshape(y_pred, (-1, y_pred.shape[-1])),
            ops.cast(self.model.target_embedding.embeddings, y_pred.dtype),
            ops.reshape(ops.cast(y, "int32"), (-1,)),
            ops.reshape(weights, (-1,)),
            self.slice_size,
            self.token_loss.label_smoothing,
            self.r_drop if training else 0.0,
            needs_gradient=training,
        )
        metric_sums = ops.stop_gradient(sums)
        self.perplexity.add(metric_sums[1], total)
        self.accuracy.add(metric_sums[2], total)
        if self.token_loss.reduction == "sum":
            return sums[0]
        return ops.divide_no_nan(sums[0], total)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Returns the metrics, which `compute_loss` has updated."""
        return self.get_metrics_result()

    def get_config(self) -> dict[str, Any]:
        return {
            "model": keras.saving.serialize_keras_object(self.model),
            "loss": keras.saving.serialize_keras_object(self.token_loss),
            "logits_mebibytes": self.logits_mebibytes,
            "r_drop": self.r_drop,
            "recomputation": self.recomputation,
            "name": self.name,
            "trainable": self.trainable,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None
    ) -> "TransformerTrainer":
        objects = {
            name: keras.saving.deserialize_keras_object(config[name]) for name in ("model", "loss")
        }
        return cls(**{**config, **objects})
