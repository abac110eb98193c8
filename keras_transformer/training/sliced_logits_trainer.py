"""Trains models without the logits of a whole batch in memory."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Literal

import keras
from keras import ops

from keras_transformer._backend import replaced
from keras_transformer._backend.compile_function import device_memory, is_on_cpu
from keras_transformer._backend.gradient_checkpointing import (
    Recomputable,
    check_checkpointable,
    gradient_checkpointing,
)
from keras_transformer._backend.operations import scalar
from keras_transformer._backend.types import Ids, Tensor
from keras_transformer.capabilities import Capabilities
from keras_transformer.layers.dropout import Dropout, keep_mask
from keras_transformer.layers.token_embedding import TokenEmbedding
from keras_transformer.models.base import FitsTokens
from keras_transformer.models.crossentropy import (
    MaskedAccuracy,
    MaskedCrossentropy,
    Perplexity,
    SecondPass,
    TokenMean,
    labels_and_weights,
)
from keras_transformer.models.protocol import SlicesLogits
from keras_transformer.models.token_predictor import TokenPredictor, is_packed, next_tokens
from keras_transformer.training.devices.base import ONE_DEVICE, Distribution


class SlicedLogitsTrainer(FitsTokens, Recomputable, keras.Model):
    """Trains a model with the logits of only a few tokens in memory at a time.

    The logits are by far the largest tensor of a training step. For 25,000 tokens and a vocabulary
    of 37,000, they take 3.4 GiB in float32, as does their gradient. This trainer shares the layers
    and weights of `model`. Its output is `model.states`, the hidden states before multiplication by
    the output matrix. From these states, the loss computes the logits of a few tokens at a time.

    Loss, metrics and gradients of a batch are the same as those of `model` itself, if you compile
    `model` with `loss` and with `weighted_metrics=[MaskedAccuracy(), Perplexity()]`. Only tokens
    whose label shares the highest logit with another token always count as correct. The reported
    loss is always a mean per token of all batches. Keras weights batches by their rows. A
    `train_step` or `compute_loss` of your own in the class of `model` is not used.

    `compile` also compiles `model`, with the same optimizer. `save`, `save_weights` and
    `load_weights` are those of `model`, which you can train further without this trainer.

    Example:

    ```python
    trainer = SlicedLogitsTrainer(model, MaskedCrossentropy(label_smoothing=0.1))
    trainer.compile(TransformerAdam(TransformerSchedule(d_model=model.d_model)))
    trainer.fit({"source_ids": source_ids, "target_ids": target_ids}, labels)
    model.save("model.keras")
    ```

    Args:
        model: A functional model with `states`, `output_weights()` and `pad_id`, such as a
            `Transformer`; see `keras_transformer.models.protocol.SlicesLogits`.
        loss: A `MaskedCrossentropy` with mean or sum reduction and the `pad_id` of `model`.
            Defaults to `MaskedCrossentropy(pad_id=model.pad_id)`, without label smoothing.
        logits_mebibytes: Memory, in MiB, for the float32 logits of the tokens that the loss
            processes at a time. These are at least `d_model` tokens, because fewer would be slow.
            Defaults to None, which means 16 on a CPU, and on a GPU a twelfth of its memory, at most
            4096.
        r_drop: Weight α of R-Drop (Liang et al., 2021). For small translation data, 5 is a good
            value. The model processes each batch twice with different dropout masks, and the loss
            includes the divergence of the two predictions. Defaults to 0, which means no R-Drop.
        simcut: Weight α of SimCut (Gao et al., 2022), whose authors use 3. The model processes each
            batch twice, and the second time some tokens have the embedding 0. The loss includes the
            divergence of the second prediction from the first. Not together with `r_drop`. Defaults
            to 0, which means no SimCut.
        simcut_rate: Probability that SimCut cuts a source or target token. Defaults to 0.05.
        teacher: A trained model with the inputs and the vocabulary of `model`, for distillation
            (Hinton et al., 2015). Its predictions, without dropout, are part of the targets in
            training. The trainer freezes the teacher. Defaults to None.
        teacher_weight: Share of the teacher in the target distribution of each token, in [0, 1].
            The smoothed label has the rest. Defaults to 0.5.
        gradient_checkpointing: Whether to recompute the activations of encoder and decoder layers
            in the backward pass, to save memory. Defaults to False.
        distribution: The devices and processes, such as `Distribution.all_devices()`. Defaults to
            one process on one device.

    Call arguments:
        inputs: The inputs of `model`.

    Returns:
        The hidden states, a float tensor (B, T, D). In training with `r_drop` or `simcut`, the
        shape is (2B, T, D).

    Raises:
        ValueError: If both `r_drop` and `simcut` are given. If `teacher` is `model`, or has another
            `pad_id`. If no layer of `model` supports `gradient_checkpointing`, or such a layer has
            batch normalization. `compile` raises it as `model.compile` does, or on PyTorch if
            `jit_compile` is True, but CUDA graphs are impossible. Training and evaluation raise it
            if an output matrix is quantized, and training with `simcut` if the model has no
            `TokenEmbedding`.
    """

    teacher: Any = None

    def __init__(
        self,
        model: Any,
        loss: MaskedCrossentropy | None = None,
        logits_mebibytes: int | None = None,
        r_drop: float = 0.0,
        simcut: float = 0.0,
        simcut_rate: float = 0.05,
        teacher: Any = None,
        teacher_weight: float = 0.5,
        gradient_checkpointing: bool = False,
        distribution: Distribution = ONE_DEVICE,
    ) -> None:
        loss = loss or MaskedCrossentropy(pad_id=model.pad_id)
        if r_drop and simcut:
            raise ValueError(
                "Only one of `r_drop` and `simcut` can be used. "
                f"Received: r_drop={r_drop}, simcut={simcut}"
            )
        if teacher and (teacher is model or teacher.pad_id != model.pad_id):
            raise ValueError(
                "`teacher` must be another model than `model`, with the same `pad_id`. "
                f"Received: pad_id={teacher.pad_id}, pad_id={model.pad_id} of the model"
            )
        if gradient_checkpointing:
            check_checkpointable(model)
        super().__init__(model.input, model.states)
        self.dtype_policy = model.dtype_policy  # Keras reads it to scale the loss in float16
        self.model = model
        self.token_loss = loss
        self.logits_mebibytes = logits_mebibytes
        self.second_pass: SecondPass | None = None
        self._cut = _Cut(simcut_rate) if simcut else None
        if r_drop or simcut:
            self.second_pass = SecondPass.r_drop(r_drop) if r_drop else SecondPass.simcut(simcut)
        self.teacher_weight = teacher_weight
        if teacher and teacher_weight:
            teacher.trainable = False
            states = keras.Model(teacher.input, teacher.states)
            self.__dict__.update(teacher=teacher, _teacher_states=states)  # not tracked by Keras
        self.gradient_checkpointing = gradient_checkpointing
        self.distribution = distribution
        self.accuracy, self.perplexity = MaskedAccuracy(loss.pad_id), Perplexity(loss.pad_id)
        for name in ("save", "save_weights", "load_weights"):
            self.__dict__[name] = getattr(model, name)

    def compile(
        self,
        optimizer: str | keras.Optimizer = "rmsprop",
        *,
        jit_compile: bool | Literal["auto"] = "auto",
        **kwargs: Any,
    ) -> None:
        """Compiles the trainer and its model, with accuracy and perplexity as metrics.

        On PyTorch, `jit_compile` chooses CUDA graphs of the training step (`GraphedStep`), which
        need a GPU. `"auto"` uses them where that is possible, and compiles the step by
        `torch.compile` (`CompiledStep`) if the model has at least 20 million weights. Compiling
        takes up to a minute for each shape of batches. True always does both.
        """
        on_torch = keras.config.backend() == "torch"
        kwargs["jit_compile"] = False if on_torch else jit_compile
        super().compile(optimizer, **kwargs)
        self._uses_graphs: bool | Literal["auto"] = False
        if on_torch:
            from keras_transformer.training.step.graphed_step import uses_graphs

            self._uses_graphs = uses_graphs(self, jit_compile)
        self.__dict__["_loss_tracker"] = _LossMean(0, "loss")  # not tracked by Keras
        own = [metric(self.model.pad_id) for metric in (MaskedAccuracy, Perplexity)]
        self.model.compile(self.optimizer, self.token_loss, weighted_metrics=own, **kwargs)

    # Keras would visit each layer twice, also as one of the trainer. It first builds the trainer.
    @property
    def variables(self) -> list[Any]:
        if not hasattr(self, "model"):
            return super().variables
        of_teacher = self.teacher.weights if self.teacher else []
        # On PyTorch, Keras resets the gradients of the last ones of equal paths.
        return of_teacher + self.model.variables + (self._cut.variables if self._cut else [])

    @property
    def weights(self) -> list[Any]:
        return self.model.weights if hasattr(self, "model") else super().weights

    @property
    def non_trainable_weights(self) -> list[Any]:
        return super().non_trainable_weights + (self.teacher.weights if self.teacher else [])

    def make_train_function(self, force: bool = False) -> None:
        if force or self._has_more_variables("train") or not self.train_function:
            self.train_function: Any = None
            if self._uses_graphs and self.distribution.is_one_device:
                from keras_transformer.training.step.graphed_step import graphed_step

                self.train_function = graphed_step(self, is_required=self._uses_graphs is True)
        super().make_train_function()  # does nothing if `train_function` is set

    @property
    def slice_size(self) -> int:
        """The number of tokens whose float32 logits are in memory at a time."""
        vocabulary_size, width = self.model.output_weights()[0].shape
        mebibytes = self.logits_mebibytes
        if mebibytes is None:
            # Slices would make a GPU read the output matrix and its gradient many times.
            memory = device_memory()
            of_gpu = min(4096, memory // 2**20 // 12) if memory else 4096
            mebibytes = 16 if is_on_cpu() else of_gpu
        return max(width, mebibytes * 2**20 // (4 * vocabulary_size))

    @property
    def pad_id(self) -> int:
        return self.model.pad_id

    def check_data(self, x: Any, y: Any, sample_weight: Any) -> None:
        if isinstance(self.model, TokenPredictor):
            self.model.check_data(x, y, sample_weight)

    def call(self, inputs: Any, training: bool | None = None, **kwargs: Any) -> Any:
        if training and self.second_pass:
            inputs = keras.tree.map_structure(lambda x: ops.concatenate([x, x]), inputs)
        recomputes = self.gradient_checkpointing and training
        with (
            gradient_checkpointing() if recomputes else nullcontext(),
            self._cut.cutting(self.model) if self._cut and training else nullcontext(),
        ):
            if is_packed(self.model, inputs):
                return self.model.packed_states(inputs)
            return super().call(inputs, training=training, **kwargs)

    def compute_loss(
        self,
        x: Any,
        y: Ids | None,
        y_pred: Tensor,
        sample_weight: Tensor | None = None,
        training: bool = True,
    ) -> Tensor:
        """Computes the loss, a float32 scalar, and updates the metrics."""
        y = next_tokens(self.model, x) if y is None else y
        shape = (None, *y_pred.shape[1:-1])  # With two passes, `y_pred` has each row twice.
        y, weights = labels_and_weights(y, shape, self.token_loss.pad_id, sample_weight)
        total = ops.sum(weights)
        mean = self.token_loss.reduction != "sum"
        divisor = self.distribution.total(total) if mean else 1.0
        teacher: tuple[Any, ...] = ()
        if self.teacher and training:
            if is_packed(self.teacher, x):
                states = self.teacher.packed_states(x)
            else:
                states = self._teacher_states(x, training=False)
            teacher = tuple(map(ops.stop_gradient, _projection(self.teacher, states)))
        sums = self.distribution.crossentropy(
            *_projection(self.model, y_pred),
            ops.reshape(y, (-1,)),
            ops.reshape(weights, (-1,)),
            slice_size=self.slice_size,
            label_smoothing=self.token_loss.label_smoothing,
            second_pass=self.second_pass if training else None,
            teacher=teacher,
            teacher_weight=self.teacher_weight,
            needs_gradient=training,
        )
        metric_sums = ops.stop_gradient(sums)
        self.perplexity.add(metric_sums[1], total)
        self.accuracy.add(metric_sums[2], total)
        loss = ops.divide_no_nan(sums[0], divisor)
        # Losses of replicas are summed, so each replica adds only its part of `self.losses`.
        for additional in self.losses:
            loss += ops.sum(ops.cast(additional, "float32")) / self.distribution.gradient_parts
        self._loss_tracker.add(ops.stop_gradient(loss * divisor), total)
        return loss * self.distribution.scale

    def compute_metrics(self, *_: Any, **__: Any) -> dict[str, Tensor]:
        """Returns the metrics, which `compute_loss` has updated."""
        return self.get_metrics_result()

    def get_config(self) -> dict[str, Any]:
        """Raises ValueError. A copy by Keras has no model, so its loss would be 0 on JAX."""
        raise ValueError("A `SlicedLogitsTrainer` has no config: make one of a copy of its `model`")

    def local_copy(self) -> "SlicedLogitsTrainer":
        """Returns a compiled trainer for one device, with the same loss but new weights."""
        model = type(self.model).from_config(self.model.get_config())
        vars(model)["tokenizer_files"] = Capabilities.of(self.model).tokenizer_files
        copy = SlicedLogitsTrainer(model, self.token_loss, self.logits_mebibytes)
        optimizer = type(self.optimizer).from_config(self.optimizer.get_config())
        copy.compile(optimizer, jit_compile=self.jit_compile)
        copy.optimizer.build(copy.trainable_variables)
        return copy


def _projection(model: SlicesLogits, states: Tensor) -> tuple[Tensor, Tensor]:
    """Returns states (M, D) and output matrix (V, D), with one more column for a bias."""
    matrix, bias = model.output_weights()
    dtype = keras.backend.standardize_dtype(matrix.dtype)
    if not keras.backend.is_float_dtype(dtype):
        raise ValueError(
            "`SlicedLogitsTrainer` does not support a quantized output matrix. Compile and "
            f"evaluate the model itself. Received: an output matrix of dtype {dtype}"
        )
    states = ops.reshape(states, (-1, states.shape[-1]))
    matrix = ops.cast(matrix, states.dtype)
    if bias is not None:
        bias = ops.cast(ops.reshape(bias, (-1, 1)), states.dtype)
        matrix = ops.concatenate([matrix, bias], axis=1)
        states = ops.pad(states, ((0, 0), (0, 1)), constant_values=1)
    return states, matrix


class _Cut(Dropout):
    """Sets random vectors to 0, in the second half of a batch."""

    @contextmanager
    def cutting(self, model: keras.Model) -> Iterator[None]:
        """Cuts the results of the model's token embeddings in the `with` block."""
        embeddings = [x for x in model._flatten_layers() if isinstance(x, TokenEmbedding)]
        if not embeddings:
            raise ValueError("`simcut` needs a model with a `TokenEmbedding`. Received: none")
        with ExitStack() as stack:
            for embedding in embeddings:
                cut = {"cut": lambda vectors: self.drop(vectors, self.next_seed())}
                stack.enter_context(replaced(embedding, cut))
            yield

    def drop(self, inputs: Tensor, seed: Tensor) -> Tensor:
        whole, cut = ops.split(inputs, 2)
        is_kept = keep_mask(seed, self.rate, (*ops.shape(cut)[:-1], 1))
        return ops.concatenate([whole, ops.where(is_kept, cut, scalar(0, cut.dtype))])


class _LossMean(TokenMean):
    """The mean loss per real target token, which `compute_loss` updates. Keras would count rows."""

    def update_state(self, *_: object, **__: object) -> None:
        pass
