"""What a user of Marian would write: translate FILE with the export in FOLDER.

Runs in a Python that has `pymarian` and `sentencepiece`. A line's first piece is marked, see
`save_marian` of `_cold_exports.py`.
"""

import sys
from pathlib import Path

import sentencepiece
from pymarian import Translator

folder, file = sys.argv[1:]
lines = Path(file).read_text("utf-8").splitlines()
pieces = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/source.model")
translator = Translator(
    f"--models {folder}/model.npz --vocabs {folder}/source.txt {folder}/target.txt --quiet "
    "--cpu-threads 2 --beam-size 5 --mini-batch 32 --maxi-batch 100 --maxi-batch-sort src"
)
sources = ["^" + " ".join(line) for line in pieces.encode(lines, out_type=str)]
for text in translator.translate(sources):
    print(pieces.decode(text.split()))
