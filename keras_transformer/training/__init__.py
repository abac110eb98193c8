"""Provides the loss, metrics, optimizer, checkpoints, training loop, and training from recipes.

What a .keras file can contain is imported at once, the rest when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
