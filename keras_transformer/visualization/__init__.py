"""Shows what a model does: pages and pictures of attention, search and training."""

from typing import TYPE_CHECKING

from keras_transformer._lazy import lazy_names

if TYPE_CHECKING:
    from keras_transformer.visualization.beam_tree import beam_page
    from keras_transformer.visualization.report import run_report

__all__ = ["beam_page", "run_report"]

__getattr__ = lazy_names(
    __name__,
    {
        "beam_page": "keras_transformer.visualization.beam_tree",
        "run_report": "keras_transformer.visualization.report",
    },
)
