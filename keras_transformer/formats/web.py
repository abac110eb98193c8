"""Exports a Transformer as a web page that translates in the browser, without a server."""

import gzip
import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_transformer._files import atomic_write, check_is_free, check_sha256
from keras_transformer.data.languages import is_right_to_left
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.errors import UserError
from keras_transformer.formats.comparison import Agreement
from keras_transformer.formats.export_options import WebWeights
from keras_transformer.formats.onnx import export_onnx
from keras_transformer.models import Transformer

_PAGE = Path(__file__).with_name("web_page")
_PACKAGE = "onnxruntime-web@1.30.0"
_SHA256 = "d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71"
_ADVICE = "run `npm pack` elsewhere, unpack it, and name its folder with --onnxruntime-web"
# Files of the package and their names in the page: some servers do not know the suffix .mjs.
_RUNTIME = {
    "dist/ort.wasm.bundle.min.mjs": "onnxruntime/ort.js",
    "dist/ort-wasm-simd-threaded.wasm": "onnxruntime/ort.wasm.gz",
}


def export_web(
    model: Transformer,
    tokenizer: Tokenizer,
    directory: str | Path,
    quantization: WebWeights = "int8_weights",
    languages: Sequence[str | None] = (),
    onnxruntime_web: str | Path | None = None,
    **arguments: Any,
) -> Agreement:
    """Writes a page of static files, for any web server. Once loaded, it needs no network.

    Its model is an ONNX export, which `export_onnx` compares with `model`.

    Example:

    >>> export_web(open_model(run), run.tokenizer(), "exports/quickstart/web")

    Args:
        model: A `Transformer` with full attention.
        tokenizer: The `Tokenizer` that the model was trained with.
        directory: A new or empty folder. If export or comparison fails, nothing is written.
        quantization: `"int8_weights"` or `"float32"`. Defaults to `"int8_weights"`.
        languages: The codes of the source and the target language, if they are known.
        onnxruntime_web: The folder of the npm package onnxruntime-web. Defaults to None, which
            means that npm fetches it, and keeps it in its cache.
        **arguments: The other arguments of `export_onnx`.
    """
    check_is_free(directory)
    with tempfile.TemporaryDirectory() as temporary, atomic_write(directory) as partial:
        runtime = Path(onnxruntime_web or _fetched(Path(temporary)))
        try:
            files = {own: (runtime / name).read_bytes() for name, own in _RUNTIME.items()}
        except OSError as error:
            raise UserError(f"{error.filename} is missing: {_ADVICE}") from None
        files |= {path.name: path.read_bytes() for path in _PAGE.iterdir()}
        onnx = Path(temporary, "onnx")
        found = export_onnx(model, tokenizer, onnx, quantization, **arguments)
        for path in (*onnx.glob("*.onnx"), *onnx.glob("*.bin"), *onnx.glob("tokenizer/*.model")):
            files[f"model/{path.relative_to(onnx).as_posix()}.gz"] = path.read_bytes()
        codes = [code and code.replace("_", "-") for code in languages]
        shown = [x and {"lang": x, "dir": "rtl" if is_right_to_left(x) else "ltr"} for x in codes]
        config = json.loads((onnx / "config.json").read_bytes()) | {"languages": shown}
        files["model/config.json.gz"] = json.dumps(config).encode()
        files |= {x: gzip.compress(files[x], mtime=0) for x in files if x.endswith(".gz")}
        version = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:16]
        stored = ["./", *sorted(files.keys() - {"sw.js", "index.html"})]
        constants = f"const VERSION = {json.dumps(version)}, FILES = {json.dumps(stored)};\n"
        files["sw.js"] = constants.encode() + files["sw.js"]
        for name, content in files.items():
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            (partial / name).write_bytes(content)
    return found


def _fetched(folder: Path) -> Path:
    """Lets npm fetch onnxruntime-web into a folder, and returns the folder of its files."""
    command = ("npm", "pack", _PACKAGE, "--prefer-offline", "--pack-destination", str(folder))
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = " ".join(str(getattr(error, "stderr", error)).split())[:300]
        raise UserError(f"npm cannot fetch {_PACKAGE} ({_ADVICE}): {reason}") from None
    (archive,) = folder.glob("*.tgz")
    check_sha256(archive, _SHA256, _PACKAGE)
    shutil.unpack_archive(archive, folder, filter="data")
    return folder / "package"
