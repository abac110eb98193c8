"""Sizes of known Transformers."""

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    # Wu et al. 2021: text-only Multi30k, 2.57M parameters with 9,728 joint tokens.
    "tiny": {"num_layers": 4, "d_model": 128, "num_heads": 4, "d_ff": 256, "dropout_rate": 0.3},
    # Vaswani et al. 2017, Table 3.
    "base": {"num_layers": 6, "d_model": 512, "num_heads": 8, "d_ff": 2048, "dropout_rate": 0.1},
    "big": {"num_layers": 6, "d_model": 1024, "num_heads": 16, "d_ff": 4096, "dropout_rate": 0.3},
}
