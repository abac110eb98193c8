"""What a user of Hugging Face would write: translate FILE with the export in FOLDER."""

import sys
from pathlib import Path

import sentencepiece
import torch
from transformers import AutoModelForSeq2SeqLM

folder, file = sys.argv[1:]
lines = Path(file).read_text("utf-8").splitlines()
pieces = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/source.spm")
model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
sources = [torch.tensor(ids) for ids in pieces.encode(lines, add_eos=True)]
order = sorted(range(len(lines)), key=lambda row: len(sources[row]))
translations = [""] * len(lines)
for start in range(0, len(order), 32):
    rows = order[start : start + 32]
    batch = torch.nn.utils.rnn.pad_sequence([sources[row] for row in rows], batch_first=True)
    ids = model.generate(batch, attention_mask=batch != 0, num_beams=5, length_penalty=0.0)
    for row, text in zip(rows, pieces.decode(ids.tolist()), strict=True):
        translations[row] = text
print("\n".join(translations))
