"""Export of trained models: SavedModel, CTranslate2 and ONNX.

Each module is imported when one of its names is first used (PEP 562). So users of `OnnxTranslator`
need not wait for the import of Keras.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_transformer.export.ctranslate2 import export_ctranslate2
    from keras_transformer.export.onnx import export_onnx
    from keras_transformer.export.onnx_translator import OnnxTranslator
    from keras_transformer.export.saved_model import export_run_saved_model, export_saved_model

__all__ = [
    "OnnxTranslator",
    "export_ctranslate2",
    "export_onnx",
    "export_run_saved_model",
    "export_saved_model",
]

_MODULES = {
    "OnnxTranslator": "onnx_translator",
    "export_ctranslate2": "ctranslate2",
    "export_onnx": "onnx",
    "export_run_saved_model": "saved_model",
    "export_saved_model": "saved_model",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
