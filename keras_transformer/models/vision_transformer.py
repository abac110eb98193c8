"""The Vision Transformer, as a functional Keras model."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_transformer.errors import check_sizes
from keras_transformer.layers import Dropout, Encoder, LearnedPositionalEncoding
from keras_transformer.layers.base import Conv2D, Dense
from keras_transformer.models.base import ConfiguredModel, compute_policy


@keras.saving.register_keras_serializable(package="keras_transformer")
class VisionTransformer(ConfiguredModel):
    """Classifies pictures with an encoder that reads a picture as a sequence of patches (§3.1).

    A linear map turns each patch into a vector, and learned position embeddings are added. Pre-norm
    encoder layers with GELU follow. The mean of their outputs is classified. The sizes default to
    those of ViT-Base. Unlike in the paper, there is no class token (Beyer et al. 2022, Better
    plain ViT baselines for ImageNet-1k). As in the authors' program, the classifier starts at zero.

    Example:

    >>> model = VisionTransformer(10, (28, 28, 1), patch_size=4, num_layers=6, d_model=64,
    ...                           num_heads=4, d_ff=128)
    >>> logits = model(pictures)                                                    # (B, 10)

    Args:
        num_classes: Number of classes C.
        image_shape: Height, width and number of channels of the pictures. Defaults to
            (224, 224, 3).
        patch_size: Height and width of a patch in pixels. Must divide height and width. Defaults
            to 16.
        num_layers: Number of layers. Defaults to 12.
        d_model: Width D. Defaults to 768.
        num_heads: Number of attention heads H. Defaults to 12.
        d_ff: Width F of the feed-forward networks. Defaults to 3072.
        dropout_rate: Dropout rate, in [0, 1), of the embeddings and of sublayer outputs. Defaults
            to 0.1.
        attention_dropout_rate: Dropout rate, in [0, 1), of the attention weights. Defaults to 0.
        stem_filters: Numbers of filters of convolutions before the patches, each of 3x3 pixels and
            followed by batch normalization and GELU. Patches then see their neighbors, which gives
            a higher accuracy after fewer steps (Xiao et al. 2021). The last convolutions have
            stride 2, as many as `patch_size` can be halved, and others have stride 1. Defaults to
            (), as in the paper.
        norm_epsilon: Constant that layer normalization adds to the variance. Defaults to 1e-6.
        dtype: Dtype policy of all layers. Defaults to the global policy.

    Call arguments:
        inputs: float tensor `(B, height, width, channels)`, scaled to about zero mean and unit
            variance.

    Returns:
        The logits, a float tensor `(B, C)` in the compute dtype.

    Attributes:
        states: The symbolic output of the encoder `(B, S, D)`. Its S patches are in rows from the
            top left.

    Raises:
        ValueError: If `patch_size` does not divide height and width, if `num_heads` does not divide
            `d_model`, or if `dtype` is float64.

    Source: Dosovitskiy et al. 2021, An Image is Worth 16x16 Words: Transformers for Image
    Recognition at Scale; for the stem, Xiao et al. 2021, Early Convolutions Help Transformers See
    Better.
    """

    def __init__(
        self,
        num_classes: int,
        image_shape: tuple[int, int, int] = (224, 224, 3),
        patch_size: int = 16,
        num_layers: int = 12,
        d_model: int = 768,
        num_heads: int = 12,
        d_ff: int = 3072,
        dropout_rate: float = 0.1,
        attention_dropout_rate: float = 0.0,
        norm_epsilon: float = 1e-6,
        stem_filters: Sequence[int] = (),
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        policy = compute_policy(dtype)
        height, width, channels = image_shape
        check_sizes(height=height, width=width, channels=channels, patch_size=patch_size)
        if height % patch_size or width % patch_size:
            raise ValueError(
                "`patch_size` must divide the height and the width in `image_shape`. "
                f"Received: patch_size={patch_size}, image_shape={image_shape}"
            )
        halvings = min(len(stem_filters), (patch_size & -patch_size).bit_length() - 1)
        stem = []
        for i, filters in enumerate(stem_filters, 1):
            convolution = Conv2D(
                filters,
                3,
                strides=2 if i > len(stem_filters) - halvings else 1,
                padding="same",
                use_bias=False,
                data_format="channels_last",
                dtype=policy,
                name=f"stem_{i}",
            )
            norm = keras.layers.BatchNormalization(dtype=policy, name=f"stem_norm_{i}")
            activation = keras.layers.Activation("gelu", dtype=policy, name=f"stem_activation_{i}")
            stem += [convolution, norm, activation]
        num_patches = (height // patch_size) * (width // patch_size)
        size = patch_size // 2**halvings
        patches = Conv2D(
            d_model,
            size,
            strides=size,
            data_format="channels_last",
            dtype=policy,
            name="patch_embedding",
        )
        positions = LearnedPositionalEncoding(
            num_patches,
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            dtype=policy,
            name="positions",
        )
        encoder = Encoder(
            num_layers,
            d_model,
            num_heads,
            d_ff,
            dropout_rate=dropout_rate,
            attention_dropout_rate=attention_dropout_rate,
            activation="gelu",
            norm_first=True,
            norm_epsilon=norm_epsilon,
            dtype=policy,
            name="encoder",
        )
        pictures = keras.Input(image_shape, dtype="float32", name="pictures")
        x = pictures
        for layer in (*stem, patches):
            x = layer(x)
        x = keras.layers.Reshape((num_patches, d_model), dtype=policy, name="sequence")(x)
        x = Dropout(dropout_rate, dtype=policy, name="embedding_dropout")(positions(x))
        states = encoder(x)
        pooled = keras.layers.GlobalAveragePooling1D("channels_last", dtype=policy, name="mean")(
            states
        )
        classifier = Dense(num_classes, kernel_initializer="zeros", dtype=policy, name="classifier")
        super().__init__(pictures, classifier(pooled), **kwargs)

        self.dtype_policy = policy
        self.num_classes = num_classes
        self.image_shape = height, width, channels
        self.patch_size = patch_size
        self.num_layers = num_layers
        self.d_model = d_model
        self.num_heads = num_heads
        self.d_ff = d_ff
        self.dropout_rate = dropout_rate
        self.attention_dropout_rate = attention_dropout_rate
        self.norm_epsilon = norm_epsilon
        self.stem_filters = list(stem_filters)
        self.encoder = encoder
        self.states = states
