from . import (
    data as data,
    decoding as decoding,
    documents as documents,
    evaluation as evaluation,
    formats as formats,
    portability as portability,
    recipe as recipe,
    runs as runs,
    serving as serving,
    translation as translation,
    visualization as visualization,
)
from ._backend.compile_function import compile_function as compile_function
from .data import (
    BatchPlan as BatchPlan,
    ParallelDataset as ParallelDataset,
    Tokenizer as Tokenizer,
    TokenStore as TokenStore,
)
from .decoding import (
    Ensemble as Ensemble,
    SamplingOptions as SamplingOptions,
    SearchOptions as SearchOptions,
    Shortlist as Shortlist,
    search as search,
)
from .errors import UserError as UserError
from .formats import (
    import_run as import_run,
    open_translator as open_translator,
    save_run as save_run,
)
from .layers import (
    Decoder as Decoder,
    DecoderLayer as DecoderLayer,
    Encoder as Encoder,
    EncoderLayer as EncoderLayer,
    FeedForward as FeedForward,
    LearnedPositionalEncoding as LearnedPositionalEncoding,
    MultiHeadAttention as MultiHeadAttention,
    PositionalEncoding as PositionalEncoding,
    ResidualConnection as ResidualConnection,
    RotaryPositionalEncoding as RotaryPositionalEncoding,
    SinusoidalPositionalEncoding as SinusoidalPositionalEncoding,
    TokenEmbedding as TokenEmbedding,
    causal_mask as causal_mask,
    padding_mask as padding_mask,
    scaled_dot_product_attention as scaled_dot_product_attention,
)
from .models import (
    BertEncoder as BertEncoder,
    LanguageModel as LanguageModel,
    MaskedLanguageModel as MaskedLanguageModel,
    Transformer as Transformer,
    merge_lora as merge_lora,
)
from .models.crossentropy import (
    MaskedAccuracy as MaskedAccuracy,
    MaskedCrossentropy as MaskedCrossentropy,
    Perplexity as Perplexity,
)
from .portability import conformance as conformance
from .recipe.files import load_recipe as load_recipe
from .recipe.settings import Recipe as Recipe
from .runs.run import Run as Run
from .training import (
    SlicedLogitsTrainer as SlicedLogitsTrainer,
    array_batches as array_batches,
    average_checkpoints as average_checkpoints,
    fit as fit,
    train as train,
)
from .training.step.optimizer import (
    TransformerAdam as TransformerAdam,
    TransformerSchedule as TransformerSchedule,
)
from .translation import (
    Generator as Generator,
    Hypothesis as Hypothesis,
    Scorer as Scorer,
    Translator as Translator,
    open_model as open_model,
    open_shortlist as open_shortlist,
)

__version__: str
