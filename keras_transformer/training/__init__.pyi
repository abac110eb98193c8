from .checkpoint import (
    average_checkpoints as average_checkpoints,
    check_same_options as check_same_options,
    load_checkpoint as load_checkpoint,
    save_checkpoint as save_checkpoint,
)
from .devices.base import Distribution as Distribution
from .fit_loop import (
    array_batches as array_batches,
    fit as fit,
)
from .run.train import train as train
from .sliced_logits_trainer import (
    MaskedAccuracy as MaskedAccuracy,
    MaskedCrossentropy as MaskedCrossentropy,
    Perplexity as Perplexity,
    SlicedLogitsTrainer as SlicedLogitsTrainer,
)
from .step.optimizer import (
    TransformerAdam as TransformerAdam,
    TransformerSchedule as TransformerSchedule,
)
from .tensorboard import (
    TensorBoardWriter as TensorBoardWriter,
    write_projector as write_projector,
)
