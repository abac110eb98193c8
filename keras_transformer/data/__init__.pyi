from .batch_plan import (
    BatchPlan as BatchPlan,
    Shard as Shard,
    evaluation_batches as evaluation_batches,
)
from .packing import pack_documents as pack_documents
from .parallel_dataset import (
    ParallelDataset as ParallelDataset,
    fit_data as fit_data,
)
from .parallel_text import read_parallel as read_parallel
from .text_files import (
    CorpusError as CorpusError,
    read_lines as read_lines,
)
from .token_masks import mask_tokens as mask_tokens
from .token_store import TokenStore as TokenStore
from .tokenizer import Tokenizer as Tokenizer
