"""The checks of `gpu.py`. As a program: a worker for one of them.

A worker is asked for `prepare`, which compiles and takes the first steps, then for `measure`, which
is timed while all other workers sleep, and perhaps for `profile`, the slowest kernels.
"""

import contextlib
import ctypes
import dataclasses
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _common
import numpy as np
from _decoding_engines import LOAD, Case as DecodingCase, new_model, save, searching
from _engines import PAD_ID, Setting
from _gpu_ceilings import ceilings
from _tensorflow_program import step_of
from _training_engines import Case, keras_hub_trainer, our_trainer, torch_step

DTYPE = "mixed_bfloat16"
STEPS, WINDOWS = 10, 6  # the first window is not counted
PROFILED_STEPS, SLOWEST = 3, 60
NUMERICS_STEPS = 3

Actions = dict[str, Callable[[], dict[str, Any]]]
Kernel = tuple[str, float, float]  # name, begin and duration in ns


@dataclasses.dataclass(frozen=True)
class Check:
    """What one worker does.

    Attributes:
        name: What the table calls it; the first word is the kind.
        engine: "ours" or a peer.
        backend: The backend of Keras.
        cases: Sizes, those of training or of decoding.
        jit_compile: "auto" is what users get.
        gigabytes: Memory of the GPU that the check takes at most, estimated.
        by_formulas: Whether layers are to do without the kernels that there are on GPUs.
        variant: "attention", by the formula instead of a kernel, an option of XLA, or one of
            Inductor, which is True if it is False otherwise, and the reverse.
        data: Folder of a recipe's text, or file of TensorFlow's program.
        on_cpu: Whether to show that the program works, on a CPU.
    """

    name: str
    engine: str
    backend: str
    cases: tuple[Any, ...]
    jit_compile: bool | str = "auto"
    gigabytes: float = 4
    by_formulas: bool = False
    variant: str = ""
    data: str = ""
    on_cpu: bool = False

    @property
    def kind(self) -> str:
        return self.name.split()[0]


# --- Training ------------------------------------------------------------------------------------


def training(check: Check) -> Actions:
    """Seconds and memory of training steps, for Keras through `fit`."""
    steps, windows = (1, 2) if check.on_cpu else (STEPS, WINDOWS)
    run, model = RUNNERS.get(check.engine, fit_runner)(check)

    def prepare() -> dict[str, Any]:
        run(1, 3)
        if check.backend == "torch":
            import torch

            torch.cuda.empty_cache()  # Other workers may need it.
        return {}

    def measure() -> dict[str, Any]:
        seconds = [x / steps for x in run(windows, steps)[1:]]
        return {
            "ms": statistics.median(seconds) * 1e3,
            "best_ms": min(seconds) * 1e3,
            "gigabytes": peak_bytes(check) / 1e9,
            "no_graph_because": getattr(model.train_function, "_reason", None) if model else None,
        }

    def profile() -> dict[str, Any]:
        return profiled(check, lambda: run(1, PROFILED_STEPS))

    return {"prepare": prepare, "measure": measure, "profile": profile}


def fit_runner(check: Check) -> tuple[Callable[[int, int], list[float]], Any]:
    """Returns a function of windows and steps, which trains by `fit` and returns seconds.

    The second result is the model.
    """
    import keras

    from keras_transformer._backend.compile_function import use_compilation_cache

    use_compilation_cache()
    make = our_trainer if check.engine == "ours" else keras_hub_trainer
    jit_compile = check.jit_compile if check.engine == "ours" else check.backend == "jax"
    model, inputs, labels = make(check.cases[0], DTYPE, jit_compile)

    class Windows(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.seconds: list[float] = []

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.begin = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            # Keras has read the loss of the epoch's last step, so the device has finished it.
            self.seconds.append(time.perf_counter() - self.begin)

    def batches() -> Iterator[Any]:
        while True:
            yield inputs, labels

    def run(windows: int, steps: int) -> list[float]:
        clock = Windows()
        model.fit(batches(), epochs=windows, steps_per_epoch=steps, verbose=0, callbacks=[clock])
        return clock.seconds

    return run, model


def torch_runner(check: Check) -> tuple[Callable[[int, int], list[float]], None]:
    """The same for PyTorch's own model, in a loop of one's own."""
    device = "cpu" if check.on_cpu else "cuda"
    step, _ = torch_step(check.cases[0], DTYPE, device, compiled=bool(check.jit_compile))
    return loop(step), None


def tensorflow_runner(check: Check) -> tuple[Callable[[int, int], list[float]], None]:
    """The same for TensorFlow's program, without TensorFlow and without what `fit` does beside."""
    return loop(step_of(Path(check.data).read_bytes())), None


RUNNERS = {"torch.nn.Transformer": torch_runner, "tensorflow": tensorflow_runner}


def loop(step: Callable[[], Any]) -> Callable[[int, int], list[float]]:
    def run(windows: int, steps: int) -> list[float]:
        seconds = []
        for _ in range(windows):
            begin = time.perf_counter()
            for _ in range(steps):
                loss = step()
            loss.item()
            seconds.append(time.perf_counter() - begin)
        return seconds

    return run


def peak_bytes(check: Check) -> float:
    if check.on_cpu:
        return 0
    if check.backend == "torch":
        import torch

        return torch.cuda.max_memory_allocated()
    import jax

    return jax.devices()[0].memory_stats()["peak_bytes_in_use"]


# The first pattern that is found in a kernel's name, in lower case, tells its part.
PARTS = {
    "loss": "cross_?entropy|nll|log_softmax|logits",
    "attention": "flash|fmha|sdpa|attention|mha_|softmax",
    "products": "gemm|matmul|cublas|cutlass|nvjet|xmma|addmm|einsum|dot|::linear|::b?mm",
    "normalization": "norm|rsqrt|welford",
}
SMALL_NS = 5_000  # of the other kernels: mostly the cost of a launch


def profiled(check: Check, action: Callable[[], Any]) -> dict[str, Any]:
    """The kernels of three steps: those that take the most time, and counts and ms by part."""
    events = list((torch_kernels if check.backend == "torch" else jax_kernels)(action))
    return {"kernels": slowest_kernels(events), "parts": by_part(events)}


def by_part(events: list[Kernel]) -> dict[str, list[float]]:
    """Count and ms of the kernels of each part, and of the gaps in which no kernel runs."""
    found = {part: [0, 0.0] for part in (*PARTS, "small", "other", "gap")}
    busy_until = min((begin for _, begin, _ in events), default=0.0)
    for name, begin, duration in sorted(events, key=lambda event: event[1]):
        own = (x for x, pattern in PARTS.items() if re.search(pattern, name.lower()))
        rows = {next(own, "small" if duration < SMALL_NS else "other"): duration}
        rows |= {"gap": begin - busy_until} if begin > busy_until else {}
        for part, ns in rows.items():
            found[part] = [found[part][0] + 1, found[part][1] + ns / 1e6]
        busy_until = max(busy_until, begin + duration)
    return found


def slowest_kernels(events: list[Kernel]) -> list[list[Any]]:
    """Name, count and ms of the kernels that take the most time."""
    counts: Counter[str] = Counter(name for name, _, _ in events)
    nanoseconds: Counter[str] = Counter()
    for name, _, duration in events:
        nanoseconds[name] += duration
    total = ["all", counts.total(), nanoseconds.total() / 1e6]
    rows = [[name[:160], counts[name], ns / 1e6] for name, ns in nanoseconds.most_common(SLOWEST)]
    return [total, *rows]


def torch_kernels(action: Callable[[], Any]) -> Iterator[Kernel]:
    import torch

    activity = torch.profiler.ProfilerActivity
    chosen = activity.CUDA if torch.cuda.is_available() else activity.CPU
    with torch.profiler.profile(activities=[chosen]) as profile:
        action()
    for event in profile.events():
        inner = sum(x.time_range.elapsed_us() for x in event.cpu_children)  # only on a CPU
        own = event.time_range.elapsed_us() - inner
        yield event.name, event.time_range.start * 1e3, own * 1e3


def jax_kernels(action: Callable[[], Any]) -> Iterator[Kernel]:
    import jax

    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            action()
        (file,) = Path(folder).rglob("*.xplane.pb")
        yield from trace_kernels(jax.profiler.ProfileData.from_file(str(file)))


def trace_kernels(trace: Any) -> Iterator[Kernel]:
    """The kernels in a trace of JAX; without a GPU, what the CPU's threads of XLA run."""
    planes = [(plane, "Stream") for plane in trace.planes if "GPU" in plane.name]
    for plane, prefix in planes or [(x, "tf_XLA") for x in trace.planes if "CPU" in x.name]:
        for line in plane.lines:
            for event in line.events if line.name.startswith(prefix) else ():
                yield event.name, event.start_ns, event.duration_ns


# --- Numerics ------------------------------------------------------------------------------------


def numerics(check: Check) -> Actions:
    """Compares three compiled steps with those of a reference, in float32 and bfloat16.

    The reference is PyTorch's eager step on the same device, by the layers' formulas, and on JAX
    the same step on the CPU. A sentence is all padding, in source and target.
    """
    found = {}

    def prepare() -> dict[str, Any]:
        found.update({dtype: three_steps(check, dtype, 0) for dtype in ("float32", DTYPE)})
        return {}

    def measure() -> dict[str, Any]:
        figures = {}
        use_formulas()
        for dtype, (losses, weights) in found.items():
            expected, others = three_steps(check, dtype, 1)
            largest = max(float(np.abs(a - b).max()) for a, b in zip(others, weights, strict=True))
            loss = max(abs(a - b) / abs(a) for a, b in zip(expected, losses, strict=True))
            figures[dtype] = {"loss": loss, "weights": largest, "losses": losses}
            if not loss < (0.02 if dtype == DTYPE else 2e-3):
                raise AssertionError(f"{dtype}: losses {expected}, {losses}")
        return figures

    return {"prepare": prepare, "measure": measure}


def use_formulas() -> None:
    from keras_transformer._backend import operations

    operations.FUSED_DEVICES = ()


def three_steps(check: Check, dtype: str, is_reference: int) -> tuple[list[float], list[Any]]:
    """Losses and weights of a trainer whose first weights and dropout masks are always the same."""
    import keras

    keras.utils.set_random_seed(1)
    with on_cpu_of_jax(check.backend == "jax" and is_reference):
        jit_compile = check.backend == "jax" or (False if is_reference else check.jit_compile)
        trainer, inputs, labels = our_trainer(check.cases[0], dtype, jit_compile)
        random = np.random.default_rng(3)
        trainer.set_weights(
            [
                random.normal(0, 0.05, x.shape).astype("float32") if x.ndim > 1 else x
                for x in trainer.get_weights()
            ]
        )
        inputs["source_ids"][0], inputs["target_ids"][0], labels[0] = PAD_ID, PAD_ID, PAD_ID
        inputs["source_ids"][1, -2:] = labels[1, -3:] = PAD_ID
        losses = [
            float(trainer.train_on_batch(inputs, labels, return_dict=True)["loss"])
            for _ in range(NUMERICS_STEPS)
        ]
        return losses, trainer.get_weights()


def on_cpu_of_jax(is_wanted: Any) -> Any:
    if not is_wanted:
        return contextlib.nullcontext()
    import jax

    return jax.default_device(jax.devices("cpu")[0])


# --- Decoding ------------------------------------------------------------------------------------


def decoding(check: Check) -> Actions:
    """Seconds of searches; every hypothesis is as long as is allowed."""
    is_ours = check.engine == "ours"
    models = {case: our_model(case, check) for case in check.cases if is_ours}
    searches = {
        case: searching(models[case], case) if is_ours else peer_search(case, check)
        for case in check.cases
    }

    def prepare() -> dict[str, Any]:
        for case, search in searches.items():
            search(case.target_length)
        return {}

    def measure() -> dict[str, Any]:
        figures = {}
        for case, search in searches.items():
            times = []
            for _ in range(1 if check.on_cpu else 3):
                begin = time.perf_counter()
                found = search(case.target_length)
                times.append(time.perf_counter() - begin)
            assert found.shape == (case.batch_size, case.target_length), found.shape
            ms = statistics.median(times) * 1e3
            figures[case.name] = {"ms": ms, "tokens_per_s": case.target_tokens / ms * 1e3}
            if is_ours and check.backend == "torch":
                figures[case.name]["same_as_eager"] = same_as_eager(models[case], case, found)
        return figures

    def profile() -> dict[str, Any]:
        case = check.cases[0]
        return profiled(check, lambda: searches[case](case.target_length))

    return {"prepare": prepare, "measure": measure, "profile": profile}


def our_model(case: DecodingCase, check: Check) -> Any:
    import keras

    keras.config.set_dtype_policy(DTYPE)
    model = new_model(case)
    model.jit_compile = check.jit_compile is True
    return model


def same_as_eager(model: Any, case: DecodingCase, found: np.ndarray) -> float:
    """The part of the tokens that a search without graphs finds too."""
    import torch

    with torch.inference_mode():
        eager = searching(model, case, is_compiled=False)(case.target_length)
    return float((eager == found).mean())


def peer_search(case: DecodingCase, check: Check) -> Callable[[int], np.ndarray]:
    """A peer with random weights in bfloat16. CTranslate2's wheel needs CUDA 12's cuBLAS."""
    device, dtype = ("cpu", "float32") if check.on_cpu else ("cuda", "bfloat16")
    setting = Setting(check.engine, dtype=dtype)
    with tempfile.TemporaryDirectory() as folder:
        save(check.engine, new_model(case), case, Path(folder))
        try:
            engine = LOAD[check.engine](case, setting, Path(folder), device)
            engine.decode(1)
        except RuntimeError as error:
            sys.exit(f"not loaded: {check.engine} on {device}, {error}")
    return engine.decode


# --- A recipe ------------------------------------------------------------------------------------

TINY_RECIPE = {
    "data.held_out": "{validation: 8, test: 8}",
    "model": "{preset: tiny, num_layers: 1}",
    "training.steps": 2,
}


def recipe(check: Check) -> Actions:
    """Minutes and scores of a training by a recipe and of its evaluation, from the command line."""

    def measure() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            run = f"{folder}/run"
            sizes = [f"--set={key}={value}" for key, value in TINY_RECIPE.items() if check.on_cpu]
            train = ["train", check.name.split()[-1], "--data-dir", check.data, "--run", run]
            seconds = [command(*train, *sizes), command("evaluate", run)]
            scores = json.loads(Path(run, "scores.json").read_text())
        figures = {"minutes": seconds[0] / 60, "evaluate_s": seconds[1]}
        return figures | {score["metric"]: score["score"] for score in scores}

    return {"prepare": dict, "measure": measure}


def command(*arguments: str) -> float:
    """Seconds of a command, which dies with this process."""
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "keras_transformer_cli", *arguments],
        check=True,
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL),  # PR_SET_PDEATHSIG
    )
    return time.perf_counter() - begin


# --- Program -------------------------------------------------------------------------------------


def limits(check: Check) -> Actions:
    return {"prepare": dict, "measure": lambda: ceilings(list(check.cases), check.on_cpu)}


KINDS: dict[str, Callable[[Check], Actions]] = {
    "ceilings": limits,
    "numerics": numerics,
    "train": training,
    "restart": training,
    "decode": decoding,
    "recipe": recipe,
}


def actions_of(check: Check) -> Actions:
    if not check.on_cpu:
        require_gpu(check.backend)
    if check.by_formulas:
        use_formulas()
    if check.variant == "attention":
        from keras_transformer.layers.attention import multi_head_attention

        multi_head_attention.attend = lambda *_, **__: None
    elif check.variant and check.backend == "torch":
        from keras_transformer._backend.compile_graph import OPTIONS

        OPTIONS[check.variant] = not OPTIONS.get(check.variant)
    return KINDS[check.kind](check)


def require_gpu(backend: str) -> None:
    if backend == "torch":
        import torch

        found = torch.cuda.is_available()
    else:
        import jax

        found = jax.default_backend() == "gpu"
    if not found:
        raise RuntimeError(f"{backend} sees no GPU here")


def to_json(check: Check) -> str:
    return json.dumps(dataclasses.asdict(check))


def from_json(text: str) -> Check:
    fields = json.loads(text)
    make = DecodingCase if fields["name"].startswith("decode") else Case
    fields["cases"] = tuple(make(**case) for case in fields["cases"])
    return Check(**fields)


if __name__ == "__main__":
    _common.serve(lambda: actions_of(from_json(sys.argv[1])))
