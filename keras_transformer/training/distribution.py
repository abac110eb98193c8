"""Trains on several devices and in several processes."""

import functools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import keras
import numpy as np
from keras import ops

from keras_transformer._backend.fit_data import fit_data
from keras_transformer._backend.operations import whole_tensor
from keras_transformer.data import Shard
from keras_transformer.errors import UserError
from keras_transformer.layers import DecoderLayer, EncoderLayer
from keras_transformer.models.crossentropy import sliced_crossentropy
from keras_transformer.recipe.settings import Recipe
from keras_transformer.runs.run import Run
from keras_transformer.training.optimizer import inner_optimizer
from keras_transformer.training.replica_loss import replica_losses

T = TypeVar("T")
BATCH, MODEL = "batch", "model"  # the axes of `JaxMesh`


class Distribution:
    """The devices and processes that train a model. This class itself stands for one device.

    `Distribution.all_devices()` returns the object for all devices and processes. Any Keras model
    then trains to the same weights as on one device, except for rounding and dropout.

    Each replica (copy of the model) gets a part (shard) of the rows of each batch. Its loss is a
    sum over its tokens, divided by the real tokens of all replicas. So the gradients of all
    replicas add up to the gradient on one device. One process is the chief: only it writes to the
    run folder and prints.

    Example:

    ```python
    distribution = Distribution.all_devices()
    with distribution.making():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    batches = distribution.split(array_batches(x, y, batch_size=32)(0))
    with distribution.fitting(model):
        model.fit(batches, steps_per_epoch=1_000)
    distribution.save(model, "model.keras")
    ```

    Attributes:
        rank: Index of this process, counted from 0. The rank of the chief is 0.
        shard: The part of each batch's rows that this process gets.
        gradient_parts: Number of replicas whose gradients are summed; 1 on JAX, where XLA does it.
        scale: Factor of a replica's loss. It is not 1 if gradients are averaged, not summed.
        needs_copy: Whether the chief validates and saves a copy of the model on one device.
    """

    rank = 0
    shard = Shard()
    gradient_parts = 1
    scale = 1
    needs_copy = False
    crossentropy: Callable[..., Any] = staticmethod(sliced_crossentropy)

    @staticmethod
    def all_devices(model_shards: int = 1, fully_sharded: bool = False) -> "Distribution":
        """Sets up all devices of all processes that a launcher started.

        Call this method before you make a model. A second call returns the same object.

        Args:
            model_shards: Number of devices that share the weights of one copy of the model. Only
                JAX can split weights in this way. Defaults to 1.
            fully_sharded: Whether each process of PyTorch holds only a part of the weights and of
                the optimizer state, and gathers the weights of a layer when it needs them (FSDP).
                Defaults to False.
        """
        return _start(keras.config.backend(), model_shards, fully_sharded)

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    def making(self) -> AbstractContextManager[Any]:
        """Returns the context in which to make or load the model."""
        return nullcontext()

    def fitting(self, model: Any) -> AbstractContextManager[Any]:
        """Returns the context in which to call `fit` of a compiled model.

        Within this context, all processes must call the methods of the model.
        """
        return nullcontext()

    @contextmanager
    def _replicas(self, model: Any, reduce: Any, changes: dict[str, Any]) -> Iterator[None]:
        """Makes a model compute a replica's part of the loss, and `reduce` its gradients."""
        _check_model(model)
        changes |= {"is_replica": True}
        if isinstance(getattr(model, "distribution", None), Distribution):
            changes["distribution"] = self
        with (
            _together(),
            _replaced(model, changes),
            replica_losses(model, self),
            _reducing(inner_optimizer(model), reduce),
        ):
            yield

    def alone(self) -> AbstractContextManager[Any]:
        """Returns the context, within `fitting`, in which the chief works on one device."""
        return nullcontext()

    def total(self, number: Any) -> Any:
        """Returns the sum of a number over all replicas, in a training step."""
        return number

    def split(self, batches: Any) -> Any:
        """Returns the rows of batches that this process gets, for `fit` of Keras or the package.

        If the replicas do not divide a batch, it gets more rows, whose weight is 0. The loss
        and the metrics in `weighted_metrics` do not count these rows, but those in `metrics` do.

        Args:
            batches: Iterable of the same batches in all processes, or the argument `batches` of
                the package's `fit`. A batch is `(x, y)` or `(x, y, sample_weight)`, of NumPy arrays
                or nested structures of arrays.

        Returns:
            The data for `model.fit`, or a function if `batches` is a function.
        """
        if callable(batches):
            return lambda skipped: map(self._rows, batches(skipped))
        return fit_data(map(self._rows, batches))

    def _rows(self, batch: Any) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
        size = len(keras.tree.flatten(x)[0])
        begin, end, parts = self.shard
        each = -(-size // parts)
        rows = np.arange(begin * each, end * each)
        # A mean over all rows would also count the rows without weight.
        factors = np.where(rows < size, each * parts / size, 0.0).astype("float32")

        def own(array: Any) -> Any:
            return np.take(array, rows, axis=0, mode="wrap")

        def weighted(array: Any) -> Any:
            return own(array) * factors.reshape(-1, *[1] * (np.ndim(array) - 1))

        if weights is None:
            shapes = keras.tree.map_structure(lambda array: (size, *[1] * (np.ndim(array) - 1)), y)
            weights = keras.tree.map_structure_up_to(y, np.ones, shapes)
        x, y = keras.tree.map_structure(own, (x, y))
        return x, y, keras.tree.map_structure(weighted, weights)

    def assign_seed(self, state: Any, seed: int) -> None:
        """Sets the state of a seed generator from `seed` < 2 ** 31, differently in each replica."""
        state.assign([seed, 0])

    def read(self, variable: Any) -> np.ndarray:
        """Returns the whole value of a variable, of which several devices may hold the parts."""
        return variable.numpy()

    def of_chief(self, flag: bool) -> bool:
        """Returns the chief's value of `flag` in every process. All processes must call this."""
        return flag

    def local(self, trainer: Any) -> Any:
        """Returns the model that the chief validates and saves. Call it within `fitting`."""
        if not self.needs_copy:
            return trainer
        with self.alone():
            return _copy(trainer) if self.is_chief else None

    def save(self, model: Any, path: str | Path) -> None:
        """Saves the whole model in the chief. All processes must call this, outside `fitting`."""
        self.on_chief(lambda whole: whole.save(path), model, self.local(model))

    def on_chief(self, action: Callable[[Any], Any], trainer: Any, local: Any) -> None:
        """Calls `action(local)` in the chief. All processes must call this."""

        def copied(model: Any) -> list[Any]:
            return [*model.weights, *model.optimizer.variables] if self.needs_copy else []

        values = [self.read(variable) for variable in copied(trainer)]
        if self.is_chief:
            with self.alone():
                for variable, value in zip(copied(local), values, strict=True):
                    variable.assign(value)
                action(local)

    def chief_first(self, action: Callable[[], T]) -> T:
        """Calls a function in the chief, then in the others, which can read the files it wrote.

        If the function fails in the chief, the other processes raise `UserError`.
        """
        failure = None
        if self.is_chief:
            try:
                result = action()
            except Exception as error:
                failure = error
        if not self.of_chief(failure is None):
            raise failure or UserError("the first process failed, see its error message")
        return result if self.is_chief else action()

    def open_run(self, directory: str | Path, recipe: Recipe, resume: bool) -> Run:
        """Calls `Run.create` or `Run.resume` in the chief, then `Run.resume` in other processes."""
        is_new = self.is_chief and not resume
        return self.chief_first(lambda: (Run.create if is_new else Run.resume)(directory, recipe))


ONE_DEVICE = Distribution()


class JaxMesh(Distribution):
    """Trains on a mesh of all devices of all processes, with `keras.distribution`.

    XLA splits the training step of the whole batch over the devices. With `model_shards` > 1, each
    copy of the weights is also split over `model_shards` devices (see `layout_map`).
    """

    needs_copy = True

    def __init__(self, model_shards: int = 1) -> None:
        import jax

        if int(os.environ.get("KERAS_DISTRIBUTION_NUM_PROCESSES", "1")) > 1:
            keras.distribution.initialize()
        self.rank = jax.process_index()
        counts = jax.process_count(), jax.local_device_count()
        self.shard = shard_of(self.rank, *counts, model_shards)
        devices = keras.distribution.list_devices()
        shape = len(devices) // model_shards, model_shards
        mesh = keras.distribution.DeviceMesh(shape, (BATCH, MODEL), devices)
        self._distribution = keras.distribution.ModelParallel(
            layout_map=layout_map(mesh), batch_dim_name=BATCH, auto_shard_dataset=False
        )

    def making(self) -> AbstractContextManager[Any]:
        return self._distribution.scope()

    @contextmanager
    def fitting(self, model: Any) -> Iterator[None]:
        with _together(), self.making(), replica_losses(model, self):
            yield

    def crossentropy(
        self,
        states: Any,
        embeddings: Any,
        labels: Any,
        weights: Any,
        teacher: tuple[Any, ...],
        **settings: Any,
    ) -> Any:
        """Computes `sliced_crossentropy` of each replica's tokens, and sums the results.

        Without separate sums, XLA would compute the logits of all tokens in every replica.
        """
        if self._distribution.device_mesh.shape[1] > 1:  # XLA cannot compile the sum.
            data = states, embeddings, labels, weights
            return sliced_crossentropy(*data, teacher=teacher, **settings)
        import jax
        from jax.sharding import PartitionSpec

        width = states.shape[-1]
        whole, by_rows = PartitionSpec(), PartitionSpec(BATCH)
        of_teacher = (by_rows, whole)[: len(teacher)]

        def of_replica(
            states: Any, embeddings: Any, labels: Any, weights: Any, teacher: Any
        ) -> Any:
            data = (ops.reshape(states, (-1, width)), embeddings, labels, weights)
            return jax.lax.psum(sliced_crossentropy(*data, teacher=teacher, **settings), BATCH)

        in_replicas = jax.shard_map(
            of_replica,
            mesh=self._distribution.device_mesh.backend_mesh,
            in_specs=(PartitionSpec(None, BATCH), whole, by_rows, by_rows, of_teacher),
            out_specs=whole,
            check_vma=False,
        )
        passes = (-1, labels.shape[0], width)  # axis 0: the forward passes; two with R-Drop
        return in_replicas(ops.reshape(states, passes), embeddings, labels, weights, teacher)

    @contextmanager
    def alone(self) -> Iterator[None]:
        keras.distribution.set_distribution(None)
        try:
            yield
        finally:
            keras.distribution.set_distribution(self._distribution)

    def read(self, variable: Any) -> np.ndarray:
        from jax.experimental import multihost_utils

        if variable.value.is_fully_replicated or variable.value.is_fully_addressable:
            return np.asarray(variable.value)
        return multihost_utils.process_allgather(variable.value, tiled=True)

    def of_chief(self, flag: bool) -> bool:
        from jax.experimental import multihost_utils

        return bool(multihost_utils.broadcast_one_to_all(np.int32(flag)))


def shard_of(process: int, processes: int, devices: int, model_shards: int) -> Shard:
    """Returns the part of a batch's rows that the process with index `process` gets.

    Each process has `devices` devices. Each group of `model_shards` devices shares one copy of the
    weights and gets the same rows.
    """
    if processes * devices % model_shards or (devices % model_shards and model_shards % devices):
        raise UserError(
            "training.model_shards must divide the total number of devices. It must also divide "
            "the number of devices per process, or be a multiple of this number. "
            f"Received: model_shards={model_shards}, {processes} processes of {devices} devices"
        )
    begin = process * devices // model_shards
    end = begin + max(1, devices // model_shards)
    return Shard(begin, end, processes * devices // model_shards)


def layout_map(mesh: Any) -> Any:
    """Returns the layout of a `Transformer`'s weights on a mesh with axes `batch` and `model`.

    Attention weights are split by heads, feed-forward weights by inner units, and embeddings and
    the bias of the logits by tokens, as in Shoeybi et al., 2019, Megatron-LM: Training
    Multi-Billion Parameter Language Models Using Model Parallelism, §3. All other weights are
    replicated.
    """
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*attention/(query|key|value)/kernel"] = (None, MODEL)
    layouts[".*attention/(query|key|value)/bias"] = (MODEL,)
    layouts[".*attention/output/kernel"] = (MODEL, None)
    layouts[".*feed_forward/inner/kernel"] = (None, MODEL)
    layouts[".*feed_forward/inner/bias"] = (MODEL,)
    layouts[".*feed_forward/outer/kernel"] = (MODEL, None)
    layouts[".*embedding/(output_)?embeddings"] = (MODEL, None)
    layouts[".*embedding/bias"] = (MODEL,)
    return layouts


class TensorFlowReplicas(Distribution):
    """Trains with `MirroredStrategy`, or with `MultiWorkerMirroredStrategy` if `TF_CONFIG` is set.

    The model is made in the strategy's scope, but `fit` runs outside of it. Inside, it would clip
    the gradients of each replica before it sums them, and fail with several workers.
    """

    needs_copy = True

    def __init__(self) -> None:
        import tensorflow as tf

        self._tf = tf
        if "TF_CONFIG" in os.environ:
            self._strategy = tf.distribute.MultiWorkerMirroredStrategy()
            self.rank = _rank(self._strategy.cluster_resolver)
        else:
            kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
            devices = [device.name for device in tf.config.list_logical_devices(kind)]
            self._strategy = tf.distribute.MirroredStrategy(devices)
        self._devices = len(self._strategy.extended.worker_devices)
        begin = self.rank * self._devices
        replicas = self._strategy.num_replicas_in_sync
        self.shard = Shard(begin, begin + self._devices, replicas)
        self.gradient_parts = replicas
        self._count = tf.function(self._sum_of_replicas)

    def making(self) -> AbstractContextManager[Any]:
        return self._strategy.scope()

    @contextmanager
    def fitting(self, model: Any) -> Iterator[None]:
        changes = {
            "_distribute_strategy": None,
            "train_function": self._train_function(model),
            "make_train_function": lambda force=False: None,
        }
        with self._replicas(model, self._sum, changes):
            yield

    def _train_function(self, model: Any) -> Callable[[Any], Any]:
        tf = self._tf

        def replica_step(batch: Any) -> Any:
            index = tf.distribute.get_replica_context().replica_id_in_sync_group - self.shard.begin

            def rows(x: Any) -> Any:
                count = tf.shape(x)[0] // self._devices
                return x[index * count : (index + 1) * count]

            return model.train_step(tf.nest.map_structure(rows, batch))

        def step(batch: Any) -> Any:
            logs = self._strategy.run(replica_step, args=(batch,))
            values_of = self._strategy.experimental_local_results
            return {name: values_of(value)[0] for name, value in logs.items()}

        optimizer = inner_optimizer(model)
        accumulation = optimizer.gradient_accumulation_steps

        def train_on(is_last: bool, batch: Any) -> Any:
            apply = functools.partial(_apply_micro_batch, optimizer, is_last)
            with _replaced(optimizer, {"_backend_apply_gradients": apply}):
                return step(batch)

        def branch(batch: Any) -> Any:
            # Keras branches within `strategy.run`, where replicas cannot communicate in a branch.
            is_last = (optimizer._iterations + 1) % accumulation == 0
            return tf.cond(is_last, lambda: train_on(True, batch), lambda: train_on(False, batch))

        # Traced once, for the shapes that the iterator declares. If the shapes of the first batches
        # mattered, a resumed training would round differently.
        chosen = branch if accumulation else step
        traced = tf.function(lambda iterator: chosen(next(iterator)))

        def train(iterator: Any) -> Any:
            with self._strategy.scope():  # Metrics get variables before a replica needs them.
                model._symbolic_build(data_batch=iterator.element_spec)
            return traced(iterator)

        return train

    def total(self, number: Any) -> Any:
        return self._sum([number])[0] if self._tf.distribute.get_replica_context() else number

    def assign_seed(self, state: Any, seed: int) -> None:
        for replica, part in enumerate(state.value.values, start=self.shard.begin):
            part.assign([(seed + replica) % 2**31, 0])

    def _sum(self, gradients: list[Any]) -> list[Any]:
        context = self._tf.distribute.get_replica_context()
        dense = [self._tf.convert_to_tensor(gradient) for gradient in gradients]
        return context.all_reduce(self._tf.distribute.ReduceOp.SUM, dense)

    def of_chief(self, flag: bool) -> bool:
        if self.shard.parts == self._devices:
            return flag
        own = self._tf.constant(float(flag and self.is_chief))
        return bool(self._count(own).numpy())

    def _sum_of_replicas(self, number: Any) -> Any:
        numbers = self._strategy.run(self._tf.identity, args=(number,))
        return self._strategy.reduce(self._tf.distribute.ReduceOp.SUM, numbers, axis=None)


def _apply_micro_batch(
    optimizer: Any, is_last: bool, gradients: list[Any], variables: list[Any]
) -> None:
    """Accumulates gradients as Keras does, and updates weights after the last micro-batch."""
    sums = [optimizer._accumulated_gradients[optimizer._get_variable_index(x)] for x in variables]
    for total, gradient in zip(sums, gradients, strict=True):
        total.assign(total + gradient)
    if is_last:
        means = [total / optimizer.gradient_accumulation_steps for total in sums]
        means = optimizer._clip_gradients(means)
        optimizer._apply_weight_decay(variables)
        optimizer._backend_update_step(means, variables, optimizer.learning_rate)
        for total in sums:
            total.assign(ops.zeros_like(total))
    if optimizer.use_ema:
        optimizer._update_model_variables_moving_average(optimizer._trainable_variables)


def _rank(resolver: Any) -> int:
    """Returns the rank of this process. If `TF_CONFIG` has a `chief`, worker 0 has rank 1."""
    chiefs = resolver.cluster_spec().as_dict().get("chief", [])
    return resolver.task_id + (len(chiefs) if resolver.task_type == "worker" else 0)


class TorchProcesses(Distribution):
    """Trains with one process per device. `torchrun` starts the processes.

    `all_reduce` sums the gradients once per optimizer step, after accumulation and before clipping.
    `DistributedDataParallel` would average the gradients after every micro-batch.
    """

    def __init__(self) -> None:
        import torch
        from torch import distributed

        on_gpu = torch.cuda.is_available()
        if on_gpu:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        # The other processes wait while the chief validates.
        settings: dict[str, Any] = {"timeout": timedelta(hours=4)}
        if "WORLD_SIZE" not in os.environ:
            settings |= {"rank": 0, "world_size": 1, "store": distributed.HashStore()}
        if not distributed.is_initialized():
            distributed.init_process_group("nccl" if on_gpu else "gloo", **settings)
        self._distributed = distributed
        self.rank = distributed.get_rank()
        self.gradient_parts = distributed.get_world_size()
        self.shard = Shard(self.rank, self.rank + 1, self.gradient_parts)

    @contextmanager
    def fitting(self, model: Any) -> Iterator[None]:
        if not model.built:
            raise ValueError(
                "The model must be built, for example with `keras.Input`: later, each process "
                f"would give it other weights. Received: model={model}"
            )
        for variable in [*model.variables, *model.optimizer.variables]:
            self._distributed.broadcast(variable.value.data, src=0)

        def metrics() -> Any:
            values = [(x, x.value) for x in model.metrics_variables]
            sums = self._sum([value for _, value in values])
            mapping = [(x, y.to(x.value.dtype)) for (x, _), y in zip(values, sums, strict=True)]
            with keras.StatelessScope(state_mapping=mapping):
                return type(model).get_metrics_result(model)

        changes = {"train_function": None, "get_metrics_result": metrics}
        with self._replicas(model, self._mean, changes):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        together, self.gradient_parts = self.gradient_parts, 1
        try:
            yield
        finally:
            self.gradient_parts = together

    @property
    def scale(self) -> int:
        return self.gradient_parts

    def total(self, number: Any) -> Any:
        return self._sum([number])[0]

    def assign_seed(self, state: Any, seed: int) -> None:
        state.assign([(seed + self.rank) % 2**31, 0])

    def _sum(self, tensors: list[Any]) -> list[Any]:
        """Returns the sums of tensors over all processes, with a single `all_reduce`."""
        import torch

        if self.gradient_parts == 1 or any(tensor.is_meta for tensor in tensors):
            return tensors
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        self._distributed.all_reduce(flat)
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [part.reshape(x.shape) for part, x in zip(parts, tensors, strict=True)]

    def _mean(self, gradients: list[Any]) -> list[Any]:
        # If Keras had averaged the gradients before, their mean would be the same.
        return [gradient / self.gradient_parts for gradient in self._sum(gradients)]

    def of_chief(self, flag: bool) -> bool:
        flags = [flag]
        self._distributed.broadcast_object_list(flags, src=0)
        return flags[0]


class ShardedTorchProcesses(TorchProcesses):
    """Splits the weights and the optimizer state over the processes, with FSDP2."""

    needs_copy = True

    @contextmanager
    def fitting(self, model: Any) -> Iterator[None]:
        from torch.distributed.device_mesh import init_device_mesh

        from keras_transformer._backend.fully_sharded import fully_sharded

        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        kind = keras.ops.zeros(()).device.type
        mesh = init_device_mesh(kind, (self._distributed.get_world_size(),))
        blocks = [x for x in model._flatten_layers() if isinstance(x, EncoderLayer | DecoderLayer)]
        with super().fitting(model), fully_sharded(model, model.optimizer, blocks, mesh):
            yield

    def _mean(self, gradients: list[Any]) -> list[Any]:
        return gradients  # FSDP has averaged them.

    def read(self, variable: Any) -> np.ndarray:
        return whole_tensor(variable.value).detach().cpu().numpy()


def _copy(model: Any) -> Any:
    """Returns a compiled model with the same settings but new weights."""
    if hasattr(model, "local_copy"):
        return model.local_copy()
    copy = type(model).from_config(model.get_config())
    copy.compile_from_config(model.get_compile_config())  # also builds its optimizer
    return copy


@contextmanager
def _together() -> Iterator[None]:
    """Raises `UserError` in the `with` block if another process of the training has ended."""
    try:
        yield
    except Exception as error:
        lost = r"gloo|nccl|collective ops|heartbeat|unavailable|connection \w+ by peer"
        if not re.search(lost, str(error), re.I):
            raise
        raise UserError(
            "another process of this training has ended or cannot be reached (see its messages). "
            "Start all processes again: `fit` resumes from the newest checkpoint"
        ) from error


@contextmanager
def _replaced(owner: Any, attributes: dict[str, Any]) -> Iterator[None]:
    """Replaces attributes of an object, untracked by Keras, in the `with` block."""
    before = dict(vars(owner))
    vars(owner).update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            vars(owner).pop(name)
            if name in before:
                vars(owner)[name] = before[name]


def _reducing(optimizer: Any, reduce: Any) -> AbstractContextManager[Any]:
    """Makes an optimizer reduce the gradients of replicas once per step, before it clips them."""
    if hasattr(optimizer, "reduce_gradients"):
        return _replaced(optimizer, {"reduce_gradients": reduce})
    clip = optimizer._clip_gradients
    reduced_first = {
        "_clip_gradients": lambda gradients: clip(reduce(gradients)),
        "_all_reduce_sum_gradients": lambda pairs: pairs,
    }
    return _replaced(optimizer, reduced_first)


@functools.cache
def _start(backend: str, model_shards: int, fully_sharded: bool) -> Distribution:
    if (model_shards > 1 and backend != "jax") or (fully_sharded and backend != "torch"):
        raise UserError(
            "`model_shards` needs KERAS_BACKEND=jax, and `fully_sharded` KERAS_BACKEND=torch. "
            f"Received: backend={backend}"
        )
    if backend == "jax":
        return JaxMesh(model_shards)
    if backend == "tensorflow":
        return TensorFlowReplicas()
    return ShardedTorchProcesses() if fully_sharded else TorchProcesses()


def _check_model(model: Any) -> None:
    """Raises `UserError` for a model that replicas would train to other weights."""
    optimizer = inner_optimizer(model)
    layers = model._flatten_layers()
    on_tensorflow = keras.config.backend() == "tensorflow"
    unsupported = {
        "ema_overwrite_frequency": on_tensorflow and optimizer.ema_overwrite_frequency,
        "BatchNormalization": any(
            isinstance(x, keras.layers.BatchNormalization) and x.trainable for x in layers
        ),
        "mixed_float16": optimizer is not model.optimizer,
    }
    if found := [name for name, is_used in unsupported.items() if is_used]:
        raise UserError(
            f"{keras.config.backend()} cannot train on several devices with "
            f"{' and '.join(found)}: use KERAS_BACKEND=jax"
        )
