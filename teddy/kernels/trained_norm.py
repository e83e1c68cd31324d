"""BatchNorm as it is in training, an addition and ReLU, and their gradients, each value read as seldom as possible.

Forward what is given is read twice, once for its statistics; backward it is read twice with the gradient. The compiler
reads as often, more slowly: its variance divides at each value, and few programs share its sums.

Shapes: R rows (images and positions) of C channels, which lie in memory with the channels last.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from teddy.kernels.chunks import BLOCK_CHANNELS, Split, combined, cut

# What was fastest for a ResNet18 of 64 × 64 images on an H200.
SUMMING, SUMMING_BACKWARD, APPLYING = Split(64, 8, 528), Split(16, 4, 1056), Split(32, 4, 16896)
COMBINED_ROWS, COMBINED_CHANNELS = 256, 8


@triton.jit
def _sums(
    given, gradient, out, statistics, clipped, sums, rows, channels, chunk_rows,
    BACKWARD: tl.constexpr, HAS_OUT: tl.constexpr, RELU: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A chunk of rows, a block of channels: Σu and Σu·(x − centre), where u is x − centre, or backward the gradient.

    `statistics` holds [centre, variance, scale, shift] of each channel, of which forward only the first is known. Where
    ReLU's result was kept, since something had been added, the gradient that it lets through is written to `clipped`.
    """
    chunk = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    present = columns < channels
    centre = tl.load(statistics + columns, mask=present, other=0.0)
    if BACKWARD and RELU and not HAS_OUT:
        scale = tl.load(statistics + 2 * channels + columns, mask=present, other=0.0)
        shift = tl.load(statistics + 3 * channels + columns, mask=present, other=0.0)
    last = tl.minimum(rows, (chunk + 1) * chunk_rows)
    total = tl.zeros([BLOCK_R, BLOCK_C], dtype=tl.float32)
    products = tl.zeros([BLOCK_R, BLOCK_C], dtype=tl.float32)
    for row in range(chunk * chunk_rows, last, BLOCK_R):
        numbers = row + tl.arange(0, BLOCK_R)
        inside = (numbers < last)[:, None] & present[None, :]
        place = numbers[:, None].to(tl.int64) * channels + columns[None, :]
        value = tl.load(given + place, mask=inside, other=0.0).to(tl.float32)
        apart = tl.where(inside, value - centre[None, :], 0.0)
        term = apart
        if BACKWARD:
            term = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
            if RELU:
                if HAS_OUT:
                    result = tl.load(out + place, mask=inside, other=0.0).to(tl.float32)
                    term = tl.where(result > 0, term, 0.0)
                    tl.store(clipped + place, term.to(clipped.dtype.element_ty), mask=inside)
                else:
                    term = tl.where(value * scale[None, :] + shift[None, :] > 0, term, 0.0)
        total += term
        products += term * apart
    place = chunk * 2 * channels + columns
    tl.store(sums + place, tl.sum(total, 0), mask=present)
    tl.store(sums + place + channels, tl.sum(products, 0), mask=present)


@triton.jit
def _describe(
    sums, centre, weight, bias, statistics, chunks, rows, channels, eps, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr
):
    """[mean, biased variance, scale, shift] of a block of channels."""
    columns = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    present = columns < channels
    total, squares = combined(sums, chunks, channels, columns, present, BLOCK_N, BLOCK_C)
    apart = total / rows
    mean = tl.load(centre + columns, mask=present, other=0.0) + apart
    variance = tl.maximum(squares / rows - apart * apart, 0.0)
    scale = tl.load(weight + columns, mask=present, other=0.0) / tl.sqrt(variance + eps)
    shift = tl.load(bias + columns, mask=present, other=0.0) - mean * scale
    tl.store(statistics + columns, mean, mask=present)
    tl.store(statistics + channels + columns, variance, mask=present)
    tl.store(statistics + 2 * channels + columns, scale, mask=present)
    tl.store(statistics + 3 * channels + columns, shift, mask=present)


@triton.jit
def _describe_backward(
    sums, statistics, factors, of_weight, of_bias, chunks, rows, channels, eps,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The gradients of weight and bias, and [slope, level] with which ∂x = scale · gradient + slope · x + level."""
    columns = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    present = columns < channels
    total, products = combined(sums, chunks, channels, columns, present, BLOCK_N, BLOCK_C)
    mean = tl.load(statistics + columns, mask=present, other=0.0)
    variance = tl.load(statistics + channels + columns, mask=present, other=0.0)
    scale = tl.load(statistics + 2 * channels + columns, mask=present, other=0.0)
    slope = -scale * products / (variance + eps) / rows
    tl.store(factors + columns, slope, mask=present)
    tl.store(factors + channels + columns, -scale * total / rows - slope * mean, mask=present)
    tl.store(of_weight + columns, products / tl.sqrt(variance + eps), mask=present)
    tl.store(of_bias + columns, total, mask=present)


@triton.jit
def _apply(
    given, other, statistics, factors, result, rows, channels, chunk_rows,
    BACKWARD: tl.constexpr, HAS_OTHER: tl.constexpr, RELU: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Forward scale · x + shift (+ what is added), clipped; backward what `_describe_backward` says of the gradient."""
    chunk = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    present = columns < channels
    scale = tl.load(statistics + 2 * channels + columns, mask=present, other=0.0)
    shift = tl.load(statistics + 3 * channels + columns, mask=present, other=0.0)
    if BACKWARD:
        slope = tl.load(factors + columns, mask=present, other=0.0)
        level = tl.load(factors + channels + columns, mask=present, other=0.0)
    last = tl.minimum(rows, (chunk + 1) * chunk_rows)
    for row in range(chunk * chunk_rows, last, BLOCK_R):
        numbers = row + tl.arange(0, BLOCK_R)
        inside = (numbers < last)[:, None] & present[None, :]
        place = numbers[:, None].to(tl.int64) * channels + columns[None, :]
        value = tl.load(given + place, mask=inside, other=0.0).to(tl.float32)
        made = value * scale[None, :] + shift[None, :]
        if BACKWARD:
            gradient = tl.load(other + place, mask=inside, other=0.0).to(tl.float32)
            if RELU:
                gradient = tl.where(made > 0, gradient, 0.0)
            made = gradient * scale[None, :] + value * slope[None, :] + level[None, :]
        else:
            if HAS_OTHER:
                made += tl.load(other + place, mask=inside, other=0.0).to(tl.float32)
            if RELU:
                made = tl.maximum(made, 0.0)
        tl.store(result + place, made.to(result.dtype.element_ty), mask=inside)


def trained_norm(
    given: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor, centre: Tensor, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The layer's result for `given` [B, C, H, W], and the mean and biased variance of `given` [C].

    `centre` is near the mean, as the running one is: sums of squares about it lose no digits.
    """
    out, statistics = _trained_norm(given, added, weight, bias, centre, eps, relu)
    return out, statistics[0], statistics[1]


@torch.library.custom_op("teddy::trained_norm", mutates_args=())
def _trained_norm(
    given: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor, centre: Tensor, eps: float, relu: bool
) -> tuple[Tensor, Tensor]:
    given = given.contiguous(memory_format=torch.channels_last)
    added = None if added is None else added.contiguous(memory_format=torch.channels_last)
    channels = given.shape[1]
    statistics, out = _of_channels(given, 4), torch.empty_like(given)
    sums, chunks = _summed(given, None, None, centre, None, relu)
    rows = given.numel() // channels
    _describe[_combining(channels)](
        sums, centre, weight, bias, statistics, chunks, rows, channels, eps,
        BLOCK_N=COMBINED_ROWS, BLOCK_C=COMBINED_CHANNELS,
    )  # fmt: skip
    _applied(given, added, statistics, None, out, relu)
    return out, statistics


@torch.library.custom_op("teddy::trained_norm_backward", mutates_args=())
def _trained_norm_backward(
    of_out: Tensor, given: Tensor, out: Tensor | None, statistics: Tensor, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of what was given, of what was added if ReLU's result is there to tell, of weight and bias."""
    of_out, given = (part.contiguous(memory_format=torch.channels_last) for part in (of_out, given))
    channels, rows = given.shape[1], given.numel() // given.shape[1]
    clipped = torch.empty_like(given) if out is not None else None
    sums, chunks = _summed(given, of_out, out, statistics, clipped, relu)
    factors, of_weight, of_bias = (_of_channels(given, count) for count in (2, 1, 1))
    _describe_backward[_combining(channels)](
        sums, statistics, factors, of_weight, of_bias, chunks, rows, channels, eps,
        BLOCK_N=COMBINED_ROWS, BLOCK_C=COMBINED_CHANNELS,
    )  # fmt: skip
    of_given = torch.empty_like(given)
    _applied(given, of_out if clipped is None else clipped, statistics, factors, of_given, relu and clipped is None)
    return of_given, given.new_empty(0) if clipped is None else clipped, of_weight[0], of_bias[0]


def _summed(
    given: Tensor, gradient: Tensor | None, out: Tensor | None, statistics: Tensor, clipped: Tensor | None, relu: bool
) -> tuple[Tensor, int]:
    """What `_sums` writes [chunks, 2, C], and the number of chunks."""
    how = SUMMING if gradient is None else SUMMING_BACKWARD
    grid, sizes = _grid(given, how)
    sums = given.new_empty((grid[0], 2, given.shape[1]), dtype=torch.float32)
    _sums[grid](
        given, gradient, out, statistics, clipped, sums, *sizes,
        BACKWARD=gradient is not None, HAS_OUT=out is not None, RELU=relu,
        BLOCK_R=how.rows, BLOCK_C=BLOCK_CHANNELS, num_warps=how.warps,
    )  # fmt: skip
    return sums, grid[0]


def _applied(
    given: Tensor, other: Tensor | None, statistics: Tensor, factors: Tensor | None, result: Tensor, relu: bool
) -> None:
    grid, sizes = _grid(given, APPLYING)
    _apply[grid](
        given, other, statistics, factors, result, *sizes,
        BACKWARD=factors is not None, HAS_OTHER=other is not None, RELU=relu,
        BLOCK_R=APPLYING.rows, BLOCK_C=BLOCK_CHANNELS, num_warps=APPLYING.warps,
    )  # fmt: skip


def _grid(given: Tensor, how: Split) -> tuple[tuple[int, int], tuple[int, int, int]]:
    """The grid of programs (chunks of rows, blocks of channels); the numbers of rows, channels and rows in a chunk."""
    channels, rows = given.shape[1], given.numel() // given.shape[1]
    chunks, blocks, chunk_rows = cut(rows, channels, how)
    return (chunks, blocks), (rows, channels, chunk_rows)


def _combining(channels: int) -> tuple[int]:
    return (triton.cdiv(channels, COMBINED_CHANNELS),)


def _of_channels(given: Tensor, count: int) -> Tensor:
    return given.new_empty((count, given.shape[1]), dtype=torch.float32)


@_trained_norm.register_fake
def _(given, added, weight, bias, centre, eps, relu):  # noqa: ARG001
    return torch.empty_like(given, memory_format=torch.channels_last), _of_channels(given, 4)


@_trained_norm_backward.register_fake
def _(of_out, given, out, statistics, eps, relu):  # noqa: ARG001
    of_given = torch.empty_like(given, memory_format=torch.channels_last)
    of_added = given.new_empty(0) if out is None else torch.empty_like(of_given)
    of_weight, of_bias = (given.new_empty(given.shape[1], dtype=torch.float32) for _ in range(2))
    return of_given, of_added, of_weight, of_bias


def _remember(ctx, inputs, output) -> None:
    given, added, _, _, _, ctx.eps, ctx.relu = inputs
    out, statistics = output
    ctx.added = added is not None
    # Without an addition, what was given tells where the result is 0: one tensor less to read.
    ctx.save_for_backward(given, statistics, *([out] if ctx.added and ctx.relu else []))
    ctx.mark_non_differentiable(statistics)


def _backward(ctx, of_out: Tensor, _: Tensor):
    given, statistics, *out = ctx.saved_tensors
    of_given, of_added, of_weight, of_bias = _trained_norm_backward(
        of_out, given, out[0] if out else None, statistics, ctx.eps, ctx.relu
    )
    return of_given, (of_added if ctx.relu else of_out) if ctx.added else None, of_weight, of_bias, None, None, None


_trained_norm.register_autograd(_backward, setup_context=_remember)
