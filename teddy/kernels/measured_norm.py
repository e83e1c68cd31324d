"""BatchNorm as it is in evaluation, an addition and ReLU, and the statistics of what was given, in one reading of it.

The compiler needs two: it does not merge a reduction over images and positions with work on each value, and its
reductions divide at each value. Convolutions leave so little else to do that this decides how fast synthesis is.

Shapes: G groups of B images, C channels, H × W positions, which lie in memory with the channels last.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from teddy.kernels.chunks import BLOCK_CHANNELS, Split, combined, cut

# Without and with something that is added, what was fastest on an H200, which has 132 multiprocessors.
ALONE, ADDED = Split(16, 4, 8 * 132), Split(64, 4, 8 * 132)
COMBINED = 32


@triton.jit
def _read(
    given, added, scales, shifts, centre, out, sums, rows, channels, chunk_rows,
    HAS_ADDED: tl.constexpr, RELU: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A chunk of one group's rows for a block of channels: the result, and Σ(x − centre), Σ(x − centre)² [C]."""
    chunk, group = tl.program_id(0), tl.program_id(1)
    columns = tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C)
    present = columns < channels
    middle = tl.load(centre + columns, mask=present, other=0.0)
    scale = tl.load(scales + columns, mask=present, other=0.0)
    shift = tl.load(shifts + columns, mask=present, other=0.0)
    begin = group.to(tl.int64) * rows * channels
    last = tl.minimum(rows, (chunk + 1) * chunk_rows)
    total = tl.zeros([BLOCK_R, BLOCK_C], dtype=tl.float32)
    squares = tl.zeros([BLOCK_R, BLOCK_C], dtype=tl.float32)
    for row in range(chunk * chunk_rows, last, BLOCK_R):
        numbers = row + tl.arange(0, BLOCK_R)
        inside = (numbers < last)[:, None] & present[None, :]
        place = begin + numbers[:, None] * channels + columns[None, :]
        value = tl.load(given + place, mask=inside, other=0.0).to(tl.float32)
        result = value * scale[None, :] + shift[None, :]
        if HAS_ADDED:
            result += tl.load(added + place, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            result = tl.maximum(result, 0.0)
        tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)
        apart = tl.where(inside, value - middle[None, :], 0.0)
        total += apart
        squares += apart * apart
    place = (group * tl.num_programs(0) + chunk) * 2 * channels + columns
    tl.store(sums + place, tl.sum(total, 0), mask=present)
    tl.store(sums + place + channels, tl.sum(squares, 0), mask=present)


@triton.jit
def _combine(sums, centre, mean, variance, chunks, rows, channels, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr):
    """The chunks of a group together: its mean and biased variance for a block of channels."""
    group = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    present = columns < channels
    own = sums + group * chunks * 2 * channels
    total, squares = combined(own, chunks, channels, columns, present, BLOCK_N, BLOCK_C)
    apart = total / rows
    middle = tl.load(centre + columns, mask=present, other=0.0)
    tl.store(mean + group * channels + columns, middle + apart, mask=present)
    tl.store(variance + group * channels + columns, squares / rows - apart * apart, mask=present)


def measured_norm(
    given: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor, centre: Tensor, spread: Tensor,
    eps: float, relu: bool, groups: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The layer's result for `given` [G · B, C, H, W], and the mean and variance of `given` in each group [G, C].

    `centre` and `spread` are the running mean and variance.
    """
    scale = weight / torch.sqrt(spread + eps)
    return _measured_norm(given, added, scale, bias - centre * scale, centre, relu, groups)


@torch.library.custom_op("teddy::measured_norm", mutates_args=())
def _measured_norm(
    given: Tensor, added: Tensor | None, scale: Tensor, shift: Tensor, centre: Tensor, relu: bool, groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    given = given.contiguous(memory_format=torch.channels_last)
    added = None if added is None else added.contiguous(memory_format=torch.channels_last)
    how = ALONE if added is None else ADDED
    channels, rows = given.shape[1], given.numel() // given.shape[1] // groups
    chunks, blocks, chunk_rows = cut(rows, channels, how, groups)
    out = torch.empty_like(given)
    sums = given.new_empty((groups, chunks, 2, channels), dtype=torch.float32)
    mean, variance = (given.new_empty((groups, channels), dtype=torch.float32) for _ in range(2))
    _read[(chunks, groups, blocks)](
        given, added, scale, shift, centre, out, sums, rows, channels, chunk_rows,
        HAS_ADDED=added is not None, RELU=relu, BLOCK_R=how.rows, BLOCK_C=BLOCK_CHANNELS, num_warps=how.warps,
    )  # fmt: skip
    _combine[(groups, blocks)](
        sums, centre, mean, variance, chunks, rows, channels, BLOCK_N=COMBINED, BLOCK_C=BLOCK_CHANNELS
    )
    return out, mean, variance


@_measured_norm.register_fake
def _(given, added, scale, shift, centre, relu, groups):  # noqa: ARG001
    of_groups = given.new_empty((groups, given.shape[1]), dtype=torch.float32)
    return torch.empty_like(given, memory_format=torch.channels_last), of_groups, torch.empty_like(of_groups)


def _remember(ctx, inputs, output) -> None:
    given, added, scale, shift, _, ctx.relu, ctx.groups = inputs
    out, mean, _ = output
    ctx.added = added is not None
    # Without an addition, what was given tells where the result is 0: one tensor less to read.
    ctx.save_for_backward(given, scale, shift, mean, *([out] if ctx.added and ctx.relu else []))


def _backward(ctx, of_out: Tensor, of_mean: Tensor, of_variance: Tensor):
    """In plain operations, which the compiler merges with those before and after."""
    given, scale, shift, mean, *out = ctx.saved_tensors
    scale, shift, value = scale[:, None, None], shift[:, None, None], given.float()
    if ctx.relu:
        of_out = torch.where((out[0] if out else value * scale + shift) > 0, of_out, 0)
    number = given.numel() // given.shape[1] // ctx.groups
    slope = 2 * of_variance / number
    level = of_mean / number - slope * mean
    by_group = value.unflatten(0, (ctx.groups, -1)) * slope[:, None, :, None, None] + level[:, None, :, None, None]
    of_given = of_out.float() * scale + by_group.flatten(0, 1)
    return of_given.to(given.dtype), of_out if ctx.added else None, None, None, None, None, None


_measured_norm.register_autograd(_backward, setup_context=_remember)
