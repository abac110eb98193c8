"""Draws the pictures of docs/how-to/attention.md with the trained translator of the package.

python scripts/draw_attention.py
"""

from pathlib import Path

from keras_transformer import Translator
from keras_transformer.visualization import attention_svg, translation_attention

FOLDER = Path(__file__).parent.parent / "docs" / "how-to"
SENTENCE = "My brother has never seen such a beautiful garden."
# A head of the last layer. It aligns "gesehen", at the end of the translation, with "seen".
LAYER, HEAD = 2, 1


def main() -> None:
    example = translation_attention(Translator.from_run("tatoeba_en_de"), SENTENCE)
    pictures = {
        "attention-head.svg": attention_svg(example, "cross", LAYER, HEAD),
        "attention-all-heads.svg": attention_svg(example),
    }
    for name, svg in pictures.items():
        (FOLDER / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
