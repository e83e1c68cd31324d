"""Triton kernels, each beside the plain version that it stands for."""
