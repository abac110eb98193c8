"""Writes and runs a script that reproduces a failure of `conformance`."""

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.portability import probe
from keras_transformer.portability.compare import Difference

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


class Place(NamedTuple):
    """The place of a failure, and what a script needs to reproduce the failure.

    Attributes:
        backends: The backends on which the script runs.
        kind: What the script runs: `"layer"` (a call), `"model"` (`predict`), `"step"` (a training
            step), `"save"` or `"search"`.
        call: Path of the layer call, or None for the whole model.
        parting: The differences that exceed their tolerances. Empty if the failure is an error.
        file: Model file to load instead of the layer or model, or None.
        expected: Outputs of the model before it was saved, or None. The script compares them with
            the outputs of one backend.
    """

    backends: tuple[str, ...]
    kind: str
    call: str | None = None
    parting: Sequence[Difference] = ()
    file: Path | None = None
    expected: Mapping[str, np.ndarray] | None = None


def write_script(
    folder: Path,
    title: str,
    place: Place,
    saved: Mapping[str, Any],
    imports: Iterable[str],
    seed: int = 0,
) -> Path:
    """Writes `reproduce.py` into a folder with `layer.keras` and `inputs.npz`.

    Args:
        folder: The folder.
        title: First line of the script's docstring.
        place: The place of the failure.
        saved: The answer of `Child.save_call`. This method writes `layer.keras` and `inputs.npz`.
        imports: Names of modules that register the classes of the layer.
        seed: Seed of the random numbers in a training step.
    """
    if place.file is not None:
        shutil.copy(place.file, folder / "layer.keras")
    if place.expected is not None:
        np.savez(folder / "expected.npz", allow_pickle=False, **place.expected)
    if place.kind == "step":
        shutil.copy(probe.__file__, folder / "probe.py")
    imports = list(imports)
    compute = _COMPUTE[place.kind].format(is_training=saved["is_training"], seed=seed)
    text = _SCRIPT.format(
        title=title,
        differ=DIFFER,
        backends=list(place.backends),
        tolerances={x.name: x.tolerance for x in place.parting},
        paths=sorted({x for x in map(_folder_of, imports) if x is not None}),
        imports="".join(f"    import {module}  # noqa: F401\n" for module in imports),
        call=", ".join(saved["call"]),
        compute="\n".join(line[4:] for line in compute.strip("\n").split("\n")),
        found="[]" if place.expected is None else '[np.load(HERE / "expected.npz")]',
    )
    path = folder / "reproduce.py"
    path.write_text(text, encoding="utf-8")
    return path


def reproduces(script: Path, message: str) -> bool:
    """Runs a script and returns whether the script fails with `message`."""
    command = [sys.executable, str(script)]
    run = subprocess.run(command, capture_output=True, text=True, errors="replace")
    return run.returncode != 0 and message in run.stderr


def _folder_of(module: str) -> str | None:
    """Returns the folder from which Python imports a module, or None for an installed package."""
    spec = importlib.util.find_spec(module.partition(".")[0])
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parents[bool(spec.submodule_search_locations)]
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return None if str(path) in installed else str(path)
