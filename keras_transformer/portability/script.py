"""Writes a script that shows a failure of `conformance`, and runs it."""

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from keras_transformer.portability import probe

# Code with which the script computes its results, by kind of script (see `write_script`).
_COMPUTE = {
    "layer": """
        outputs = keras.tree.flatten(layer(*arguments, **named))
        return {{f"output {{i}}": array(x) for i, x in enumerate(outputs)}}""",
    "model": """
        outputs = keras.tree.flatten(layer.predict_on_batch(*arguments))
        return {{f"output {{i}}": array(x) for i, x in enumerate(outputs)}}""",
    "step": """
        from probe import Probe  # the file beside this script

        step = Probe(layer, arguments, named, is_training={is_training}, seed={seed}).step
        return step(arguments, named)""",
    "save": """
        layer.save(HERE / "saved.keras")
        return {{}}""",
    "search": """
        from keras_transformer.portability.child import search_arrays

        return search_arrays(layer, arguments[0])""",
}
DIFFER = "The results differ."
_SCRIPT = '''"""{title}

Run `python reproduce.py`. It prints the largest difference of each result, and the tolerance: the
largest difference that rounding explains.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

BACKENDS = {backends!r}
TOLERANCES = {tolerances!r}
HERE = Path(__file__).parent
sys.path += {paths!r}


def results():
    import keras
{imports}
    def array(x):
        x = keras.ops.cast(x, "float32") if "float" in str(x.dtype) else x
        return keras.ops.convert_to_numpy(x)

    layer = keras.saving.load_model(HERE / "layer.keras", compile=False)
    arrays = np.load(HERE / "inputs.npz")
    arguments, named = {call}
{compute}


if len(sys.argv) > 1:  # the process of a backend
    np.savez(sys.argv[1], **results())
    sys.exit()
found = {found}
for backend in BACKENDS:
    path = HERE / f"{{backend}}.npz"
    env = {{**os.environ, "KERAS_BACKEND": backend}}
    subprocess.run([sys.executable, __file__, str(path)], env=env, check=True)
    found.append(np.load(path))
parts = False
for name, tolerance in TOLERANCES.items():
    values = [x[name].astype("float64") for x in found if name in x]
    same_shape = len(values) == 2 and values[0].shape == values[1].shape
    difference = np.abs(values[0] - values[1]).max() if same_shape else np.inf
    parts |= not difference <= tolerance
    print(f"{{name}}: difference {{difference:.1e}}, tolerance {{tolerance:.1e}}")
if parts:
    sys.exit({differ!r})
'''


def write_script(
    folder: Path,
    kind: str,
    title: str,
    backends: Sequence[str],
    tolerances: Mapping[str, float],
    call: Sequence[str],
    imports: Iterable[str],
    is_training: bool = False,
    seed: int = 0,
) -> Path:
    """Writes `reproduce.py` into a folder with `layer.keras` and `inputs.npz`.

    Args:
        folder: The folder. If it has a file `expected.npz`, the results must equal its arrays.
        kind: What to run: `"layer"` (a call), `"model"` (`predict`), `"step"`, `"save"` or
            `"search"`.
        title: First line of the script's docstring.
        backends: The backends to run.
        tolerances: Largest difference of each compared array.
        call: Python code of the positional and of the keyword arguments of the call.
        imports: Modules that register the classes of the layer.
        is_training: The argument `training` of the layer in a training step.
        seed: Seed of the random numbers in a training step.
    """
    imports = list(imports)
    compute = _COMPUTE[kind].format(is_training=is_training, seed=seed)
    text = _SCRIPT.format(
        title=title,
        differ=DIFFER,
        backends=list(backends),
        tolerances=dict(tolerances),
        paths=sorted({x for x in map(_folder_of, imports) if x is not None}),
        imports="".join(f"    import {module}  # noqa: F401\n" for module in imports),
        call=", ".join(call),
        compute="\n".join(line[4:] for line in compute.strip("\n").split("\n")),
        found='[np.load(HERE / "expected.npz")]' if (folder / "expected.npz").exists() else "[]",
    )
    if kind == "step":
        shutil.copy(probe.__file__, folder / "probe.py")
    path = folder / "reproduce.py"
    path.write_text(text, encoding="utf-8")
    return path


def reproduces(script: Path, message: str) -> bool:
    """Runs a script; returns whether the script fails with `message`."""
    command = [sys.executable, str(script)]
    run = subprocess.run(command, capture_output=True, text=True, errors="replace")
    return run.returncode != 0 and message in run.stderr


def _folder_of(module: str) -> str | None:
    """Returns the folder that Python must search for a module; None if the module is installed."""
    spec = importlib.util.find_spec(module.partition(".")[0])
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parents[bool(spec.submodule_search_locations)]
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return None if str(path) in installed else str(path)
