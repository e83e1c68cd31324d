"""scikit-learn's handwritten digits: bundled, so that everything can be tried without a download."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

from teddy.data.listing import ArrayListing, Catalogue

NATIVE_SIZE = 8
DEFAULT_SIZE = 16


def read_digits(size: int = DEFAULT_SIZE) -> Catalogue:
    """All 1,797 of them, grey, `size` × `size`."""
    digits = load_digits()
    grey = torch.from_numpy(digits.images).float()[:, None] / 16
    if size != NATIVE_SIZE:
        grey = F.interpolate(grey, size=(size, size), mode="bicubic", antialias=True).clamp(0, 1)
    pixels = (grey[:, 0] * 255).round().to(torch.uint8).numpy()
    labels = digits.target.astype(np.int64)
    classes = tuple(str(name) for name in digits.target_names)
    return Catalogue("digits", classes, ArrayListing.of(pixels, labels, (("digits", len(labels)),)), None)
