"""A user's notebook: translate each line of FILE with RUN, one call each, and print the seconds."""

import sys
import time

start = time.perf_counter()
from pathlib import Path  # noqa: E402

from keras_transformer import Run, Translator, open_model  # noqa: E402

folder, file = sys.argv[1:]
run = Run.open(folder)
translator = Translator(open_model(run), run.tokenizer())
print(time.perf_counter() - start)
for line in Path(file).read_text("utf-8").splitlines():
    start = time.perf_counter()
    translator.translate([line])
    print(time.perf_counter() - start)
