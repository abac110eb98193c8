"""What a user of Marian would write: translate FILE with the export in FOLDER.

On CPUs, the masks of Marian's "transformer-new" have NaN for padding if a batch's width, eos
included, is a multiple of 4. So such a batch gets a longer sentence, which is thrown away.
"""

import sys
from pathlib import Path

import sentencepiece
from pymarian import Translator

BATCH = 32
folder, file = sys.argv[1:]
vocabulary = f"{folder}/vocabulary.spm"
lines = Path(file).read_text("utf-8").splitlines()
pieces = sentencepiece.SentencePieceProcessor(model_file=vocabulary)
sources = pieces.encode(lines, out_type=str)
order = sorted(range(len(lines)), key=lambda row: len(sources[row]), reverse=True)
inputs: list[list[str]] = []
for start in range(0, len(order), BATCH - 1):
    batch = [sources[row] for row in order[start : start + BATCH - 1]]
    if len(batch) > 1:
        batch.append(batch[0] + batch[0][-1:] if len(batch[0]) % 4 == 3 else [])
    inputs += batch
translator = Translator(
    models=f"{folder}/model.npz",
    vocabs=[vocabulary, vocabulary],
    no_spm_encode=True,
    beam_size=5,
    normalize=0,
    allow_unk=True,
    mini_batch=BATCH,
    maxi_batch=1,
    maxi_batch_sort="none",
    cpu_threads=2,
    quiet=True,
)
outputs = translator.translate([" ".join(source) for source in inputs])
del outputs[BATCH - 1 :: BATCH]
translations = dict(zip(order, outputs, strict=False))
print("\n".join(translations[row] for row in range(len(lines))))
