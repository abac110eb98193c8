"""A training step of one model with a vocabulary of any size, in four ways. As a program: a point.

The model is that of `_training_engines`, small in all but the vocabulary.
"""

import json
import sys

from _engines import PAD_ID, Setting, new_transformer
from _peak_memory import measure_step
from _training_engines import (
    ADAM,
    DROPOUT_RATE,
    LABEL_SMOOTHING,
    Case,
    Engine,
    batch_of,
    keras_engine,
    keras_hub_engine,
    keras_transformer_engine,
    torch_engine,
)

TRAINER, FULL_LOGITS = "SlicedLogitsTrainer", "Transformer, full logits"
KERAS_HUB, TORCH = "KerasHub's layers", "torch.nn.Transformer"
TARGET_TOKENS, LENGTH = 4_096, 32


def case_of(vocabulary_size: int) -> Case:
    batch_size = TARGET_TOKENS // LENGTH
    return Case("vocabulary", 2, 128, 4, 256, vocabulary_size, batch_size, LENGTH, LENGTH)


def full_logits_engine(case: Case, setting: Setting) -> Engine:
    """`Transformer` itself, compiled with the loss over its logits."""
    from keras_transformer.training import MaskedCrossentropy, TransformerAdam

    model = new_transformer(case, dropout_rate=DROPOUT_RATE)
    loss = MaskedCrossentropy(LABEL_SMOOTHING, PAD_ID)
    model.compile(TransformerAdam(**ADAM), loss, jit_compile=setting.jit_compile)
    source_ids, target_ids, labels = batch_of(case)
    return keras_engine(model, {"source_ids": source_ids, "target_ids": target_ids}, labels)


ENGINES = {
    TRAINER: keras_transformer_engine,
    FULL_LOGITS: full_logits_engine,
    KERAS_HUB: keras_hub_engine,
    TORCH: torch_engine,
}


def main() -> None:
    name, backend, vocabulary_size = sys.argv[1:]
    setting = Setting(name, backend, jit_compile=backend == "jax")
    engine = ENGINES[name](case_of(int(vocabulary_size)), setting)
    print(json.dumps(measure_step(engine.step)))


if __name__ == "__main__":
    main()
