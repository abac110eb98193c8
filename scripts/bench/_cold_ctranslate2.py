"""What a user of CTranslate2 would write: translate FILE with the export in FOLDER."""

import sys
from pathlib import Path

import ctranslate2
import sentencepiece

folder, file = sys.argv[1:]
lines = Path(file).read_text("utf-8").splitlines()
pieces = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/tokenizer/source.model")
translator = ctranslate2.Translator(folder)
results = translator.translate_batch(
    pieces.encode(lines, out_type=str),
    max_batch_size=1024,
    batch_type="tokens",
    beam_size=5,
    length_penalty=1e-9,  # 0 goes with another rule when to stop
    min_decoding_length=0,
)
for result in results:
    print(pieces.decode(result.hypotheses[0]))
