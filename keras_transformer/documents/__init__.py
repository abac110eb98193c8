"""Above translation: files in, files out. Everything but the text stays as it is."""

import codecs
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from keras_transformer._files import output_path, read_bytes
from keras_transformer.documents.document import Document, Languages
from keras_transformer.documents.html import read_html
from keras_transformer.documents.markdown import read_markdown
from keras_transformer.documents.subtitles import read_srt, read_vtt
from keras_transformer.documents.units import read_po, read_xliff
from keras_transformer.errors import UserError
...
