"""Real images that stand for their class: one from the middle of each of several clusters.

Shapes: N images, D features.
"""

import warnings

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from teddy.data.images import Images
from teddy.data.source import Source
from teddy.pool.measuring import last_features


def draw_typical(source: Source, network: nn.Module, per_class: int, generator: torch.Generator) -> Images:
    """`per_class` training images of every class, class after class, by what `network` makes of them."""
    features = last_features(network, source)
    rows = []
    for label in range(len(source.classes)):
        members = (source.train.labels == label).nonzero().flatten().cpu()
        seed = int(torch.randint(2**31, (), generator=generator))
        rows.append(members[middle_rows(features[members], per_class, seed)])
    return source.train.take(torch.cat(rows))


def middle_rows(features: Tensor, count: int, seed: int) -> Tensor:
    """The row of features [N, D] nearest to the centre of each of `count` clusters, those of large clusters first;
    where many are alike and there are fewer clusters, any others fill up."""
    with threadpool_limits(1), warnings.catch_warnings():  # sums of several threads depend on how many there are
        warnings.simplefilter("ignore", ConvergenceWarning)
        clusters = KMeans(count, n_init=1, random_state=seed).fit(features.numpy())
    distances = np.linalg.norm(features.numpy() - clusters.cluster_centers_[clusters.labels_], axis=1)
    sizes = np.bincount(clusters.labels_, minlength=count)
    nearest = []
    for cluster in np.argsort(-sizes, kind="stable")[: np.count_nonzero(sizes)]:
        inside = np.flatnonzero(clusters.labels_ == cluster)
        nearest.append(inside[distances[inside].argmin()])
    others = np.setdiff1d(np.arange(len(features)), nearest)
    return torch.tensor([*nearest, *others[: count - len(nearest)]])
