"""The private names of Keras that this package uses. pyproject.toml bounds Keras because of them.

To allow the next minor version of Keras, run the tests that are named here with that version.
"""

import ast
import re
from pathlib import Path

import keras

import keras_transformer

# Why each name is used, and the test that fails if Keras gives the name another meaning.
REASONS = {
    "Keras lists layers within layers nowhere else": {
        "_flatten_layers": "_backend/test_gradient_checkpointing.py recomputing_changes_no_number",
    },
    "a scope of recomputation is seen only in the layers made in it, and in their calls": {
        "_get_call_context": "_backend/test_gradient_checkpointing.py recomputing_changes_no",
        "_remat_mode": "_backend/test_gradient_checkpointing.py recomputing_changes_no_number",
    },
    "`value` is a copy in another dtype, or checks the shape that a shard has not": {
        "_value": "_backend/test_gradient_checkpointing.py recomputing_changes_no_number",
    },
    "Keras would import TensorFlow to see whether it is installed": {
        "_available": "_backend/test_backend.py saving_and_seeding_load_no_tensorflow",
    },
    "on JAX, an error in a step would lose the weights": {
        "_purge_model_variables": "models/test_modes.py a_refusal_within_a_step_keeps_the_weights",
    },
    "clones share what the layers of a model share": {
        "_run_through_graph": "models/test_transformer.py copies_are_equal",
    },
    "a first batch is checked before Keras compiles for it": {
        "_compile_loss": "models/test_token_predictor.py the_first_batch_of_any_data_is_looked_at",
        "_symbolic_build": "models/test_token_predictor.py the_first_batch_of_any_data_is_looked",
    },
    "a layer of one's own is quantized as Keras's are": {
        "_is_quantized": "layers/test_token_embedding.py embedding_keeps_its_vectors",
    },
    "PyTorch's FSDP holds the weights": {
        "_torch_params": "training/test_own_model.py processes_that_hold_half_of",
        "_track_variables": "training/test_own_model.py processes_that_hold_half_of",
    },
    "the step is compiled whole on PyTorch": {
        "_call_has_training_arg": "training/step/test_compiled_step.py compiled_steps_equal_eager",
        "_compute_loss": "training/step/test_compiled_step.py compiled_steps_equal_eager",
        "_losses_override": "training/test_sliced_logits_trainer.py a_bias_and_additional_losses",
    },
    "replicas add gradients and losses": {
        "_accumulated_gradients": "training/test_own_model.py many_equal_one",
        "_apply_weight_decay": "training/test_own_model.py many_equal_one",
        "_all_reduce_sum_gradients": "training/devices/test_base.py many_train_to",
        "_backend_apply_gradients": "training/test_own_model.py many_equal_one",
        "_distribute_strategy": "training/devices/test_base.py many_train_to",
        "_flat_losses": "training/test_own_model.py many_equal_one",
        "_iterations": "training/test_own_model.py many_equal_one",
        "_loss_tracker": "training/devices/test_base.py many_train_to",
    },
    "the optimizer clips, averages and counts whole steps, by one kernel on a GPU": {
        "_backend_update_step": "training/step/test_optimizer.py averages_count_optimizer_steps",
        "_clip_gradients": "training/step/test_optimizer.py the_whole_gradient_of_a_step_is_clipp",
        "_get_current_learning_rate": "training/step/test_optimizer.py schedule_sees_optimizer",
        "_get_variable_index": "training/step/test_optimizer.py averages_count_optimizer_steps",
        "_learning_rate": "training/step/test_optimizer.py schedule_sees_optimizer_steps",
        "_model_variables_moving_average": "training/step/test_optimizer.py fit_ends_with_the",
        "_momentums": "_backend/test_gpu_formulas.py fused_adam_equals_that_of_keras",
        "_trainable_variables": "training/step/test_optimizer.py fit_ends_with_the_averages",
        "_update_model_variables_moving_average": "training/step/test_optimizer.py averages_count",
        "_use_weight_decay": "training/step/test_optimizer.py a_step_is_that_of_the_paper",
        "_velocities": "_backend/test_gpu_formulas.py fused_adam_equals_that_of_keras",
    },
}
WATCHED = {name: test for names in REASONS.values() for name, test in names.items()}

# Names of our own that Keras also uses, in classes that have nothing to do with ours.
OWN = {
    *("_lock", "_step", "_trainable"),
    "_devices",
    "_encode",
    "_metrics",
    "_model",
    "_nodes",
    "_pair",
    "_pool",
    "_resize",
    "_select",
    "_split",
}

TESTS = Path(__file__).parent


def private_names(path):
    """Returns the private names that a module reads, sets, or defines in a class."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Constant):  # getattr(layer, "_flatten_layers", ...)
            names.add(node.value)
        elif isinstance(node, ast.ClassDef):
            names |= {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
    return {name for name in names if isinstance(name, str) and re.match("_[a-z]", name)}


def test_every_private_name_of_keras_is_watched():
    package = Path(keras_transformer.__file__).parent
    used = set().union(*map(private_names, package.rglob("*.py")))
    of_keras = set()
    for path in (Path(keras.__file__).parent / "src").rglob("*.py"):
        if not path.name.endswith("_test.py"):
            of_keras |= set(re.findall(r"(?:\bdef |\bself\.)(_[a-z]\w*)", path.read_text()))
    assert used & of_keras == WATCHED.keys() | OWN


def test_the_watching_tests_exist():
    for test in WATCHED.values():
        file, name = test.split()
        assert f"\ndef test_{name}" in (TESTS / file).read_text(), test
