"""Models and runs in other formats: each is read, written and compared with the model in one file.

The functions for KerasHub import `keras_hub`, which needs the extra `tensorflow` and imports
TensorFlow on every backend.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
