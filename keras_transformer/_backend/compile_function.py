"""Compiles functions that call a model, and keeps JAX's compiled programs on disk."""

import functools
import hashlib
import os
import platform
import threading
from collections.abc import Callable, Collection
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import keras
from keras import ops

from keras_transformer._backend import check_not_forked, set_to
from keras_transformer.capabilities import Capabilities

# Largest size of JAX's cache on CPUs, which looks at all its programs when it writes one. Programs
# for GPUs are larger, and get 8 times as much.
MAX_CACHE_BYTES = 2**27

# The `GraphedLoops` or `RecordedLoops` of the compiled function that runs now, on PyTorch.
_loops: ContextVar[Any] = ContextVar("loops", default=None)


def compile_function(
    function: Callable[..., Any],
    model: Any,
    *,
    donated: Collection[int] = (),
    any_shape: bool = False,
) -> Callable[..., Any]:
    """Compiles `function(model, *tensors, **options)` once per combination of shapes and options.

    TensorFlow and JAX compile the function. PyTorch runs it eagerly in inference mode, except that
    `while_loop` records a step, and replays it. If `model.jit_compile` is True, as of Keras's
    `compile`, PyTorch compiles the recorded step. If `model.compiles` is False (see `Searchable`),
    every backend runs it eagerly. Every call reads the model's current weights. The first call
    after `quantize` or `enable_lora` recompiles the function.

    Example:

    >>> compiled = compile_function(search, model)
    >>> result = compiled(source_ids, max_length=60, options=SearchOptions(beam_size=4))

    Args:
        function: Function that uses `keras.ops` and returns tensors in any nested structure.
        model: Model that is passed as the first argument of `function`.
        donated: Zero-based indices of the `tensors` that the caller will not use again. JAX reuses
            their memory for the results. Defaults to none.
        any_shape: If True, TensorFlow makes one graph without XLA. All axes of the first tensor and
            the first axis of each other tensor may vary in size. A small model then takes 3 times
            as long per batch, but a new shape causes no delay. Defaults to False.

    Returns:
        A function that takes `tensors` (or arrays) by position and hashable `options` by name.
    """
    backend = keras.config.backend() if Capabilities.of(model).compiles else "none"
    layers = [layer for layer in _layers(model) if hasattr(layer, "quantization_config")]
    lock = threading.Lock()

    @functools.lru_cache(maxsize=1)
    def compiled(_: Any) -> Callable[..., Any]:
        if backend == "tensorflow":
            return _tensorflow(function, model, any_shape)
        if backend == "jax":
            return _jax(function, model, donated)
        bound = functools.partial(function, model)
        return _torch(bound, Capabilities.of(model).jit_compile) if backend == "torch" else bound

    def call(*tensors: Any, **options: Any) -> Any:
        # `quantize` and `enable_lora` change these. Listing all variables would take longer.
        check_not_forked(keras.config.backend())
        state = [(x.quantization_config is None, getattr(x, "lora_enabled", False)) for x in layers]
        with lock:
            current = compiled((Capabilities.of(model).jit_compile, *state))
        return current(*tensors, **options)

    return call


def while_loop(steps_left: Any, body: Any, carried: tuple[Any, ...], given: Any, name: Any) -> Any:
    """Repeats `body`, in a compiled function of PyTorch by CUDA graphs or a recorded step.

    `body` is a function of `given` and the loop's tensors `carried`, each of any nested structure.
    It may also read weights. `steps_left` is a function of `carried`. It returns an upper bound of
    the steps that follow, int32 `()`, and 0 at the end of the loop. CUDA graphs are asked for it
    every few steps, and may make more steps, within the bound. `name` is hashable and names what
    the loop computes.
    """
    loops = _loops.get()
    if loops is not None:
        return loops.run(steps_left, body, carried, given, name)

    def step(*carried: Any) -> Any:
        new = body(given, *carried)
        if keras.config.backend() != "jax":
            return new
        # With 64-bit numbers, JAX sums int32 to int64.
        return keras.tree.map_structure(lambda x, old: ops.cast(x, old.dtype), new, carried)

    return ops.while_loop(lambda *carried: steps_left(*carried) > 0, step, carried)


def compiles_each_shape(model: Any = None) -> bool:
    """Returns whether `compile_function` compiles again for each new shape."""
    return keras.config.backend() != "torch" or Capabilities.of(model).jit_compile


def compiling(model: Any = None) -> str:
    """Returns what a progress bar shows before the first step: "compiling" or ""."""
    return "compiling" if compiles_each_shape(model) else ""


def makes_graphs() -> bool:
    """Returns whether `compile_function` makes one graph for all shapes with `any_shape`."""
    return keras.config.backend() == "tensorflow"


def prefers_float32() -> bool:
    """Returns whether compiled functions take less time in float32 than in half precision."""
    return compiles_each_shape() and is_on_cpu()


def is_on_cuda() -> bool:
    """Returns whether PyTorch computes on a GPU of CUDA. Apple's GPUs have no CUDA graphs."""
    return keras.config.backend() == "torch" and ops.zeros(()).device.type == "cuda"


def is_on_cpu() -> bool:
    """Returns whether the backend computes on CPUs only."""
    if keras.config.backend() == "torch":
        return ops.zeros(()).device.type == "cpu"
    return all(name.startswith("cpu") for name in keras.distribution.list_devices())


def device_memory() -> int | None:
    """Returns the bytes of memory of the first GPU, or None if the backend does not tell."""
    if is_on_cuda():
        import torch

        return int(torch.cuda.get_device_properties(0).total_memory)
    if keras.config.backend() == "jax":
        import jax

        return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return None


def _layers(model: Any) -> list[Any]:
    """Returns the layers of a model, or of the models of an `Ensemble`, which may be ensembles."""
    if models := Capabilities.of(model).models:
        return [layer for part in models for layer in _layers(part)]
    return list(getattr(model, "_flatten_layers", list)())


def _tensorflow(
    function: Callable[..., Any], model: Any, any_shape: bool = False
) -> Callable[..., Any]:
    """Makes graphs. Unless they take any shape, XLA compiles them.

    For a small model, XLA shortens beam search by 60 % and greedy search by 90 %.
    """
    import tensorflow as tf

    graphs: dict[Any, Callable[..., Any]] = {}
    lock = threading.Lock()

    def spec(x: Any, is_first: bool) -> Any:
        sizes = tuple(x.shape)
        if any_shape:
            sizes = (None,) * len(sizes) if is_first else (None, *sizes[1:])[: len(sizes)]
        return tf.TensorSpec(sizes, x.dtype)

    def call(*tensors: Any, **options: Any) -> Any:
        leaves = [x if x is None else tf.convert_to_tensor(x) for x in keras.tree.flatten(tensors)]
        specs = tuple(None if x is None else spec(x, i == 0) for i, x in enumerate(leaves))
        key = (specs, tuple(sorted(options.items())))
        with lock:
            if key not in graphs:
                graph = tf.function(
                    lambda *x: function(model, *x, **options),
                    autograph=False,
                    jit_compile=not any_shape,
                )
                structure = keras.tree.pack_sequence_as(tensors, specs)
                graphs[key] = graph.get_concrete_function(*structure)
        return graphs[key](*keras.tree.pack_sequence_as(tensors, leaves))

    return call


def _jax(function: Callable[..., Any], model: Any, donated: Collection[int]) -> Callable[..., Any]:
    """Passes the weights as an argument, because JAX would compile captured values as constants."""
    import jax

    variables = list(model.variables)
    use_compilation_cache()

    def stateless(weights: list[Any], *tensors: Any, options: tuple[Any, ...]) -> Any:
        with keras.StatelessScope(state_mapping=zip(variables, weights, strict=True)):
            return function(model, *tensors, **dict(options))

    # The name is for JAX's profiles and logs.
    stateless.__name__ = getattr(function, "__name__", "stateless").strip("_")
    given = [1 + index for index in donated]
    compiled = jax.jit(stateless, static_argnames="options", donate_argnums=given)

    def call(*tensors: Any, **options: Any) -> Any:
        weights = [variable.value for variable in variables]
        return compiled(weights, *tensors, options=tuple(sorted(options.items())))

    return call


def _torch(bound: Callable[..., Any], is_compiled: bool) -> Callable[..., Any]:
    import torch

    @functools.cache
    def loops(has_graphs: bool) -> Any:
        from keras_transformer._backend.cuda_graphs import GraphedLoops
        from keras_transformer._backend.recorded_loops import RecordedLoops

        return (GraphedLoops if has_graphs else RecordedLoops)(is_compiled)

    @torch.inference_mode()
    def call(*tensors: Any, **options: Any) -> Any:
        with set_to(_loops, loops(is_on_cuda())):
            return bound(*tensors, **options)

    return call


def use_compilation_cache() -> None:
    """Lets JAX, if it is the backend, keep compiled programs in the user's cache folder.

    The folder is `keras_transformer/jax/<processor>` of `XDG_CACHE_HOME` or `~/.cache`, because a
    program for one processor may crash on another. The cache stays off if the process cannot write
    there. Settings of JAX win: `JAX_COMPILATION_CACHE_DIR`, `JAX_ENABLE_COMPILATION_CACHE=false`.
    """
    if keras.config.backend() != "jax":
        return
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    config = jax.config
    if config.jax_compilation_cache_dir or not config.jax_enable_compilation_cache:
        return
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME", ""))
        home = home if home.is_absolute() else Path.home() / ".cache"  # as in the XDG standard
        folder = home / "keras_transformer" / "jax" / _processor()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        return
    config.update("jax_compilation_cache_max_size", MAX_CACHE_BYTES * (1 if is_on_cpu() else 8))
    config.update("jax_persistent_cache_min_compile_time_secs", 0)
    config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    config.update("jax_compilation_cache_dir", str(folder))
    compilation_cache.reset_cache()  # JAX looks for the folder only before it first compiles.


def _processor() -> str:
    """Returns a hash of the processor's model name and features."""
    info = Path("/proc/cpuinfo")
    lines = set(info.read_text().splitlines()) if info.is_file() else ()
    features = sorted(x for x in lines if x.startswith(("model name", "flags", "Features")))
    parts = platform.machine(), platform.processor(), *features
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
