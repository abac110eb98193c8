"""A server for translations, which speaks LibreTranslate's API. It needs the extra `server`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
