from .batcher import ServerOptions as ServerOptions
from .server import create_app as create_app
