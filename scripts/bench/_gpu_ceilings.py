"""How fast a GPU is at what a training step is made of: copies, matrix products, attention, Adam.

The sum of a step's matrix products is the part of its time that no compiler can remove.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

from _training_engines import Case

WARM_UP, REPEATS = 3, 10


def ceilings(cases: list[Case], on_cpu: bool) -> dict[str, Any]:
    """Figures in ms, TB/s and TFLOP/s by name. On a CPU, they only show that the program works."""
    import torch

    device = "cpu" if on_cpu else "cuda"
    figures: dict[str, Any] = {"device": device if on_cpu else torch.cuda.get_device_name()}
    size = 128 if on_cpu else 8192

    def random(*shape: int) -> Any:
        return torch.randn(shape, device=device).to(torch.bfloat16)

    whole = random(size, size * 8)
    figures["copy_tb_per_s"] = 4e-9 * whole.numel() / milliseconds(whole.clone, device)
    square = random(size, size)
    figures["product_tflops"] = 2e-9 * size**3 / milliseconds(lambda: square @ square, device)
    del whole
    for case in cases:
        for joined in (False, True):
            each = [
                (*product, product_ms(*product[:3], device))
                for product in step_products(case, joined)
            ]
            name = f"products_{case.name}{'_joined' if joined else ''}"
            figures[f"{name}_ms"] = sum(count * ms for *_, count, ms in each)
            figures[f"{name}_each"] = each
        figures.update(attention(case, device, random))
    figures.update(adam(63_000 if on_cpu else 63_000_000, device))
    return figures


def product_ms(rows: int, inner: int, columns: int, device: str) -> float:
    """Of a bfloat16 matrix product; the one of weights' gradients reads a transposed matrix."""
    import torch

    left = torch.randn(inner, rows, device=device).to(torch.bfloat16).t()
    if inner <= rows:
        left = left.contiguous()
    right = torch.randn(inner, columns, device=device).to(torch.bfloat16)
    return milliseconds(lambda: left @ right, device)


def step_products(case: Case, joined: bool) -> Iterator[tuple[int, int, int, int]]:
    """Rows, inner size, columns and count of a step's matrix products, without attention's.

    If `joined`, queries, keys and values are made by one product, and memory's keys and values too.
    """
    d, tokens = case.d_model, case.batch_size * case.target_length
    layers = case.num_layers
    maps = [(d, d, 12 * layers)]
    if joined:
        maps = [(d, 3 * d, 2 * layers), (d, 2 * d, layers), (d, d, 4 * layers)]
    maps += [(d, case.d_ff, 2 * layers), (case.d_ff, d, 2 * layers), (d, case.vocabulary_size, 1)]
    for inner, columns, count in maps:
        yield tokens, inner, columns, count
        yield tokens, columns, inner, count  # gradient of the inputs
        yield inner, tokens, columns, count  # gradient of the weights


def attention(case: Case, device: str, random: Callable[..., Any]) -> dict[str, Any]:
    """Forward and backward of one layer's attention: the formula, and PyTorch's kernels."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    length, width = case.target_length, case.d_model // case.num_heads
    shape = (case.batch_size, length, case.num_heads, width)
    q, k, v = (random(*shape).transpose(1, 2).requires_grad_() for _ in range(3))
    upstream = random(*shape).transpose(1, 2)
    mask = torch.zeros(case.batch_size, 1, 1, length, device=device, dtype=torch.bfloat16)
    mask[..., -3:] = -1e9
    mask = mask.expand(-1, case.num_heads, length, -1)

    def both(forward: Callable[[], Any]) -> float:
        return milliseconds(lambda: torch.autograd.grad(forward(), (q, k, v), upstream), device)

    def formula() -> Any:
        scores = (q @ k.transpose(-1, -2)).float() / width**0.5 + mask
        return scores.softmax(-1).to(torch.bfloat16) @ v

    figures: dict[str, Any] = {f"attention_{case.name}_formula_ms": both(formula)}
    for kernel in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"):
        for kind, option in (("padding", {"attn_mask": mask}), ("causal", {"is_causal": True})):
            name = f"attention_{case.name}_{kernel.split('_')[0].lower()}_{kind}_ms"
            try:
                with sdpa_kernel([getattr(SDPBackend, kernel)]):
                    figures[name] = both(
                        lambda: scaled_dot_product_attention(q, k, v, **option)  # noqa: B023
                    )
            except RuntimeError as error:
                figures[name] = f"{error}".splitlines()[0][:80]
    return figures


def adam(count: int, device: str) -> dict[str, float]:
    """The fused optimizer and the gradient norm, for `count` weights in 250 variables."""
    import torch

    weights, gradients, first, second = (
        list(torch.rand(250, count // 250, device=device)) for _ in range(4)
    )
    steps = [torch.ones((), device=device) for _ in weights]
    options: dict[str, Any] = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.98, "eps": 1e-9}
    options |= {"weight_decay": 0.0, "amsgrad": False, "maximize": False}

    def step() -> None:
        torch._fused_adam_(weights, gradients, first, second, [], steps, **options)

    return {
        "adam_fused_ms": milliseconds(step, device),
        "gradient_norm_ms": milliseconds(lambda: torch.nn.utils.get_total_norm(gradients), device),
    }


def milliseconds(action: Callable[[], Any], device: str) -> float:
    """The median of several times, by the device's clock."""
    import torch

    times = []
    for repeat in range(WARM_UP + REPEATS):
        if device == "cpu":
            start = time.perf_counter()
            action()
            return (time.perf_counter() - start) * 1e3
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        action()
        end.record()
        torch.cuda.synchronize()
        if repeat >= WARM_UP:
            times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]
