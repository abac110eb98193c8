"""What a user of Marian would write: translate FILE with the export in FOLDER.

Runs in a Python that has `pymarian`.
"""

import sys
from pathlib import Path

from pymarian import Translator

folder, file = sys.argv[1:]
translator = Translator(
    f"--models {folder}/model.npz --vocabs {folder}/source.spm {folder}/source.spm --quiet "
    "--cpu-threads 2 --beam-size 5 --mini-batch 32 --maxi-batch 100 --maxi-batch-sort src"
)
for text in translator.translate(Path(file).read_text("utf-8").splitlines()):
    print(text)
