"""The training step: what a batch does to the weights.

Keras's `train_step` is the step everywhere: forward pass, loss, gradients, update. This package
holds what runs it otherwise than Keras does by itself.

| backend    | devices           | what runs `train_step`                                        |
|------------|-------------------|---------------------------------------------------------------|
| JAX        | any               | Keras, compiled by XLA, which splits it over a mesh           |
| JAX        | one GPU, a recipe | the same; `CompileAhead` compiles all shapes at the start     |
| TensorFlow | one               | Keras, as a graph, which XLA compiles on a GPU                |
| TensorFlow | several           | Keras, as a graph, in each replica (`devices.tensorflow`)     |
| PyTorch    | one               | Keras, eagerly                                                |
| PyTorch    | one GPU of CUDA   | `graphed_step` of it, or of `compiled_step`                   |
| PyTorch    | several processes | Keras, eagerly, in each process                               |

With several replicas on TensorFlow and PyTorch, `devices.replica` changes two things in the step:
the loss is that of a part of the batch, and the gradients are reduced before they are clipped.

Gradients take one way in all rows: Keras accumulates them over the micro-batches, then calls the
optimizer's `_clip_gradients`, then updates the weights.
"""
