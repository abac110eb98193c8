"""Exports a Transformer as a web page that translates in the browser, without a server."""

import gzip
import hashlib
import json
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from keras_transformer._files import atomic_write, check_is_free
from keras_transformer.data.languages import is_right_to_left, standard_code
from keras_transformer.data.text_files import download
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.errors import UserError
from keras_transformer.formats.comparison import Agreement
from keras_transformer.formats.onnx import export_onnx
from keras_transformer.models import Transformer

WebWeights = Literal["int8_weights", "float32"]
_PAGE = Path(__file__).with_name("templates") / "web"
_PACKAGE = "onnxruntime-web-1.30.0.tgz"
_REGISTRY = "https://registry.npmjs.org/onnxruntime-web/-"
_SHA256 = "d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71"
# The files of onnxruntime-web, and their names in the export. Some servers do not know ".mjs".
_RUNTIME = {
    "ort.wasm.bundle.min.mjs": "onnxruntime/ort.js",
    "ort-wasm-simd-threaded.wasm": "onnxruntime/ort.wasm.gz",
}


def export_web(
    model: Transformer,
    tokenizer: Tokenizer,
    directory: str | Path,
    quantization: WebWeights = "int8_weights",
    sentences: Sequence[str] | None = None,
    languages: Sequence[str | None] = (None, None),
    onnxruntime_web: str | Path | None = None,
    **search: Any,
) -> Agreement:
    """Writes a folder of static files: a page that translates, also without a network.

    The model is an ONNX export, which is compared with `model` before the page is written. Any
    server for static files can host the folder, by https or on localhost.

    Example:

    >>> export_web(open_model(run), run.tokenizer(), "exports/quickstart/web")

    Args:
        model: A `Transformer` with full attention.
        tokenizer: The `Tokenizer` that the model was trained with.
        directory: A new or empty folder. If export or comparison fails, nothing is written.
        quantization: `"int8_weights"` or `"float32"`, see `export_onnx`. Defaults to
            `"int8_weights"`.
        sentences: As for `export_onnx`.
        languages: The codes of the source and the target language, which the page shows. Defaults
            to unknown languages.
        onnxruntime_web: The folder of the npm package onnxruntime-web, or its folder `dist`.
            Defaults to None, which means a download that is kept in `KERAS_HOME`.
        **search: The arguments `beam_size`, `length_penalty` and `max_length` of `export_onnx`.

    Raises:
        UserError: If onnxruntime-web is missing, and as `export_onnx`.
        ValueError: As `export_onnx`.
    """
    check_is_free(directory)
    runtime = _runtime(onnxruntime_web)
    with tempfile.TemporaryDirectory() as temporary, atomic_write(directory) as partial:
        folder = Path(temporary, "onnx")
        found = export_onnx(model, tokenizer, folder, quantization, sentences, **search)
        config = json.loads((folder / "config.json").read_text("utf-8"))
        (folder / "config.json").write_text(json.dumps(config | {"languages": _described(languages)}))
        files = {path.name: path.read_bytes() for path in _PAGE.iterdir()} | runtime
        for path in folder.rglob("*"):
            if path.is_file() and path.suffix != ".py":
                files[f"model/{path.relative_to(folder).as_posix()}.gz"] = path.read_bytes()
        for name, content in files.items():
            files[name] = gzip.compress(content, mtime=0) if name.endswith(".gz") else content
        files["sw.js"] = _constants(files) + files["sw.js"]
        for name, content in files.items():
            path = partial / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return found


def _constants(files: dict[str, bytes]) -> bytes:
    """Returns the constants of the service worker: the files to store, and a hash of them."""
    names = sorted(files.keys() - {"sw.js", "index.html"})
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(hashlib.sha256(name.encode()).digest())
        digest.update(hashlib.sha256(files[name]).digest())
    values = {"VERSION": digest.hexdigest()[:16], "FILES": ["./", *names]}
    return "".join(f"const {name} = {json.dumps(x)};\n" for name, x in values.items()).encode()


def _described(languages: Sequence[str | None]) -> list[dict[str, str]]:
    """Returns code and direction of both languages, or nothing if one of them is unknown."""
    known = [standard_code(code) for code in languages if code]
    if len(known) < len(languages):
        return []
    return [{"code": x, "direction": "rtl" if is_right_to_left(x) else "ltr"} for x in known]


def _runtime(folder: str | Path | None) -> dict[str, bytes]:
    """Reads the files of onnxruntime-web from a folder, or from the package of the registry."""
    if folder is not None:
        places = [place for place in (Path(folder, "dist"), Path(folder)) if place.is_dir()]
        try:
            return {own: (places[0] / name).read_bytes() for name, own in _RUNTIME.items()}
        except (OSError, IndexError):
            raise UserError(
                f"{folder} must be the folder of the npm package onnxruntime-web, with the files "
                f"{' and '.join(_RUNTIME)} in it or in its folder dist"
            ) from None
    advice = "download and unpack it elsewhere, and name its folder with --onnxruntime-web"
    archive = download(_PACKAGE, _REGISTRY, _SHA256, advice)
    with tarfile.open(archive) as package:
        members = {own: package.extractfile(f"package/dist/{x}") for x, own in _RUNTIME.items()}
        return {own: file.read() for own, file in members.items() if file}
