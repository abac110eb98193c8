from .ctranslate2 import export_ctranslate2 as export_ctranslate2
from .ctranslate2_translator import CTranslate2Translator as CTranslate2Translator
from .engines import open_translator as open_translator
from .export_options import ExportOptions as ExportOptions
from .hub import push_to_hub as push_to_hub
from .hugging_face import export_hugging_face as export_hugging_face
from .keras_hub import (
    bert_from_keras_hub as bert_from_keras_hub,
    bert_to_keras_hub as bert_to_keras_hub,
    gpt2_from_keras_hub as gpt2_from_keras_hub,
    gpt2_to_keras_hub as gpt2_to_keras_hub,
    llama_from_keras_hub as llama_from_keras_hub,
    llama_to_keras_hub as llama_to_keras_hub,
    qwen3_from_keras_hub as qwen3_from_keras_hub,
    qwen3_to_keras_hub as qwen3_to_keras_hub,
)
from .onnx import (
    export_onnx as export_onnx,
    onnx_translator as onnx_translator,
)
from .run_export import export_run as export_run
from .run_folder import (
    change_vocabulary as change_vocabulary,
    export_shared_run as export_shared_run,
    import_run as import_run,
    open_preset as open_preset,
    save_run as save_run,
)
from .saved_model import export_saved_model as export_saved_model
from .web import export_web as export_web
