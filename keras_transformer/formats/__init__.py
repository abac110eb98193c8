"""Models and runs in other formats: each is read, written and compared with the model in one file.

The functions for KerasHub import `keras_hub`, which needs the extra `tensorflow` and imports
TensorFlow on every backend.
"""

from typing import TYPE_CHECKING

from keras_transformer._lazy import lazy_names

if TYPE_CHECKING:
    from keras_transformer.formats.ctranslate2 import export_ctranslate2
    from keras_transformer.formats.ctranslate2_translator import CTranslate2Translator
    from keras_transformer.formats.engines import open_translator
    from keras_transformer.formats.hugging_face import export_hugging_face
    from keras_transformer.formats.keras_hub import (
        bert_from_keras_hub,
        bert_to_keras_hub,
        gpt2_from_keras_hub,
        gpt2_to_keras_hub,
    )
    from keras_transformer.formats.onnx import export_onnx, onnx_translator
    from keras_transformer.formats.run_export import ExportOptions, export_run
    from keras_transformer.formats.run_folder import (
        export_shared_run,
        import_run,
        open_preset,
        save_run,
    )
    from keras_transformer.formats.saved_model import export_saved_model

__all__ = [
    "CTranslate2Translator",
    "ExportOptions",
    "bert_from_keras_hub",
    "bert_to_keras_hub",
    "export_ctranslate2",
    "export_hugging_face",
    "export_onnx",
    "export_run",
    "export_saved_model",
    "export_shared_run",
    "gpt2_from_keras_hub",
    "gpt2_to_keras_hub",
    "import_run",
    "onnx_translator",
    "open_preset",
    "open_translator",
    "save_run",
]

__getattr__ = lazy_names(
    __name__,
    {
        "ctranslate2": "export_ctranslate2",
        "ctranslate2_translator": "CTranslate2Translator",
        "engines": "open_translator",
        "hugging_face": "export_hugging_face",
        "keras_hub": """
            bert_from_keras_hub bert_to_keras_hub gpt2_from_keras_hub gpt2_to_keras_hub""",
        "onnx": "export_onnx onnx_translator",
        "run_export": "ExportOptions export_run",
        "run_folder": "export_shared_run import_run open_preset save_run",
        "saved_model": "export_saved_model",
    },
)
