"""Exports models to SavedModel, CTranslate2, ONNX and Hugging Face, and runs to small folders."""

from keras_transformer.export.ctranslate2 import export_ctranslate2
from keras_transformer.export.hugging_face import export_hugging_face
from keras_transformer.export.onnx import export_onnx, onnx_translator
from keras_transformer.export.options import ExportOptions
from keras_transformer.export.run_export import export_run
from keras_transformer.export.saved_model import export_saved_model
from keras_transformer.export.shared_run import export_shared_run

__all__ = [
    "ExportOptions",
    "export_ctranslate2",
    "export_hugging_face",
    "export_onnx",
    "export_run",
    "export_saved_model",
    "export_shared_run",
    "onnx_translator",
]
