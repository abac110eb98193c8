"""Loops of PyTorch that can be recorded, and loops that can't."""

import pytest
from keras import ops

from keras_transformer._backend import compile_function

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.once  # on PyTorch


@pytest.mark.parametrize(
    "body, can_repeat",
    [
        (lambda x: x + (2 if x[0] < 3 else 1), False),
        (lambda x: x + float(x.tolist()[0] < 3), False),
        (lambda x: x + float(ops.convert_to_numpy(x)[0] < 3), False),
        (lambda x: x + x[x > 2].sum(), False),
        (lambda x: x.data + 1, False),
        (lambda x: torch.cat([x, x[:1]]), False),
        (lambda x: x + torch.tensor([1.0]).add_(1.0), True),
        (lambda x: x.split(1)[0] + x.max(0).values, True),
    ],
    ids=["item", "tolist", "numpy", "choice", "data", "growing", "constant", "several"],
)
def test_a_step_is_repeated_only_if_no_value_decides_in_python(programs, body, can_repeat):
    class Model:
        compiles = True

    def loop(model, x, count):
        def steps_left(x, count):
            return count

        def step(_, x, count):
            return body(x), count - 1

        return compile_function.while_loop(steps_left, step, (x, count), None, "loop")[0]

    compiled = compile_function.compile_function(loop, Model())
    for _ in range(3):
        expected = torch.tensor([0.5])
        for _ in range(6):
            expected = body(expected)
        assert compiled(torch.tensor([0.5]), torch.tensor(6)).tolist() == expected.tolist()
    assert len(programs) <= 1 and any(programs) == can_repeat
