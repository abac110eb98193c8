"""The Transformer of "Attention Is All You Need" for Keras 3, on TensorFlow, JAX and PyTorch.

`import keras_transformer` imports Keras and registers the layers, models, losses, metrics and
optimizers of this package, so that `keras.saving.load_model` can load them. Other names, which
`__init__.pyi` lists, are imported when they are first used. Each sub-package has further names.
"""

import importlib.metadata
import os

import lazy_loader

__version__ = "0.1.0.dev0"

if [*importlib.metadata.distributions(name="keras-transformer")]:
    from keras_transformer_cli import COLLISION

    raise ImportError(COLLISION)

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

# The command line translates with CTranslate2 before Keras could be imported.
if not os.environ.get("KERAS_TRANSFORMER_WITHOUT_KERAS"):
    import keras_transformer.layers
    import keras_transformer.models
    import keras_transformer.training.step.optimizer  # noqa: F401
