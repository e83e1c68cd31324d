"""Sums over rows by many programs: how the rows are cut into chunks, and how the chunks' sums come together.

Shapes: R rows (images and positions) of C channels, which lie in memory with the channels last.
"""

from typing import NamedTuple

import triton
import triton.language as tl

BLOCK_CHANNELS = 64


class Split(NamedTuple):
    """How a kernel's work is split: rows of a block, warps of a program, programs in all."""

    rows: int
    warps: int
    programs: int


def cut(rows: int, channels: int, how: Split, groups: int = 1) -> tuple[int, int, int]:
    """The numbers of chunks of a group's rows and of blocks of channels, and the rows of a chunk."""
    blocks = triton.cdiv(channels, BLOCK_CHANNELS)
    chunks = min(triton.cdiv(how.programs, groups * blocks), triton.cdiv(rows, how.rows))
    chunk_rows = triton.cdiv(triton.cdiv(rows, chunks), how.rows) * how.rows
    return triton.cdiv(rows, chunk_rows), blocks, chunk_rows


@triton.jit
def combined(sums, chunks, channels, columns, present, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr):
    """Both of the chunks' sums [chunks, 2, C], added up for a block of channels."""
    first_sum = tl.zeros([BLOCK_N, BLOCK_C], dtype=tl.float32)
    second_sum = tl.zeros([BLOCK_N, BLOCK_C], dtype=tl.float32)
    for first in range(0, chunks, BLOCK_N):
        numbers = first + tl.arange(0, BLOCK_N)
        inside = (numbers < chunks)[:, None] & present[None, :]
        place = numbers[:, None] * 2 * channels + columns[None, :]
        first_sum += tl.load(sums + place, mask=inside, other=0.0)
        second_sum += tl.load(sums + place + channels, mask=inside, other=0.0)
    return tl.sum(first_sum, 0), tl.sum(second_sum, 0)
