"""Shows what a model does: pages and pictures of attention, search and training."""

from keras_transformer.translation.beam_tree import beam_page
from keras_transformer.visualization.attention import (
    attention_maps,
    attention_rollout,
    translation_attention,
)
from keras_transformer.visualization.attention_pages import (
    AttentionExample,
    AttentionMap,
    attention_page,
    attention_svg,
    head_entropy,
    png_from_svg,
)
from keras_transformer.visualization.report import run_report

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
