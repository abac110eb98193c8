"""Layers of a user, some of which compute something else on one backend on purpose."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="custom_layers")
class Square(keras.layers.Layer):
    """A product with a square kernel, which PyTorch transposes if `is_broken`."""

    def __init__(self, is_broken=False, **kwargs):
        super().__init__(**kwargs)
        self.is_broken = is_broken

    def build(self, shape):
        self.kernel = self.add_weight((shape[-1], shape[-1]), name="kernel")

    def call(self, x):
        is_wrong = self.is_broken and keras.backend.backend() == "torch"
        return ops.matmul(x, ops.transpose(self.kernel) if is_wrong else self.kernel)


@keras.saving.register_keras_serializable(package="custom_layers")
class Block(keras.layers.Layer):
    """Two products with an activation between them; the second may be broken."""

    def __init__(self, is_broken=False, **kwargs):
        super().__init__(**kwargs)
        self.first = Square(name="first")
        self.second = Square(is_broken, name="second")

    def build(self, shape):
        self.first.build(shape)
        self.second.build(shape)

    def call(self, x):
        return self.second(ops.tanh(self.first(x)))


@ops.custom_gradient
def _straight_through(x):
    def gradient(*args, upstream=None):  # PyTorch passes x too, and `upstream` by name
        factor = 2.0 if keras.backend.backend() == "jax" else 1.0
        return factor * (args[-1] if upstream is None else upstream)

    return ops.round(x), gradient


@keras.saving.register_keras_serializable(package="custom_layers")
class Round(keras.layers.Layer):
    """Rounds; the gradient on JAX is twice that on other backends."""

    def call(self, x):
        return _straight_through(x)


@keras.saving.register_keras_serializable(package="custom_layers")
class Untold(keras.layers.Layer):
    """Forgets an argument when it is saved."""

    def __init__(self, factor=1.0, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, x):
        return self.factor * x

    def get_config(self):  # Otherwise, Keras would save the arguments of the constructor.
        return {"name": self.name}


@keras.saving.register_keras_serializable(package="custom_layers")
class OnlyTensorFlow(keras.layers.Layer):
    """Calls TensorFlow, as many old layers do; other backends raise an error."""

    def call(self, x):
        if keras.backend.backend() != "tensorflow":
            raise TypeError("x must be a tf.Tensor")
        return x


@keras.saving.register_keras_serializable(package="custom_layers")
class CountsTwice(keras.layers.Layer):
    """Counts its calls in training, each twice on PyTorch. It may draw random numbers, too."""

    def __init__(self, draws=False, **kwargs):
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(1) if draws else None

    def build(self, shape):
        self.count = self.add_weight((), "zeros", "int32", trainable=False, name="count")

    def call(self, x, training=False):
        if training:
            self.count.assign(self.count + (2 if keras.backend.backend() == "torch" else 1))
        return x + keras.random.normal(ops.shape(x), seed=self.seeds) if self.seeds else x


@keras.saving.register_keras_serializable(package="custom_layers")
class Nested(keras.Model):
    """A model with a functional model inside, whose second layer is broken."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        x = keras.Input((4,))
        y = Square(True, name="broken")(Square(name="right")(x))
        self.inner = keras.Model(x, y, name="inner")

    def call(self, x):
        return self.inner(x)


@keras.saving.register_keras_serializable(package="custom_layers")
class SometimesNaN(keras.layers.Layer):
    """Replaces random elements by NaN on PyTorch."""

    def call(self, x):
        if keras.backend.backend() != "torch":
            return x
        return ops.where(keras.random.uniform(ops.shape(x)) < 0.5, float("nan"), x)
