"""Shows what a model does: pages and pictures of attention, search and training."""

from typing import TYPE_CHECKING

from keras_transformer._lazy import lazy_names

if TYPE_CHECKING:
    from keras_transformer.visualization.attention_example import (
        AttentionExample,
        translation_attention,
    )
    from keras_transformer.visualization.attention_html import attention_page
    from keras_transformer.visualization.attention_picture import attention_svg, png_from_svg
    from keras_transformer.visualization.attention_weights import (
        AttentionMap,
        attention_maps,
        attention_rollout,
        head_entropy,
    )
    from keras_transformer.visualization.beam import beam_page
    from keras_transformer.visualization.report import run_report

_MODULES = {
    "AttentionExample": "attention_example",
    "AttentionMap": "attention_weights",
    "attention_maps": "attention_weights",
    "attention_page": "attention_html",
    "attention_rollout": "attention_weights",
    "attention_svg": "attention_picture",
    "beam_page": "beam",
    "head_entropy": "attention_weights",
    "png_from_svg": "attention_picture",
    "run_report": "report",
    "translation_attention": "attention_example",
}
__all__ = [
    "AttentionExample",
    "AttentionMap",
    "attention_maps",
    "attention_page",
    "attention_rollout",
    "attention_svg",
    "beam_page",
    "head_entropy",
    "png_from_svg",
    "run_report",
    "translation_attention",
]

__getattr__ = lazy_names(__name__, {name: f"{__name__}.{x}" for name, x in _MODULES.items()})
