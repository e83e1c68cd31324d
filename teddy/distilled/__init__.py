"""The distilled set: a folder that explains itself, and a PyTorch data set."""

from teddy.distilled.dataset import DistilledSet, EvaluationTransform
from teddy.distilled.description import (
    DESCRIPTION,
    FORMAT,
    LABELS,
    Description,
    as_json,
    is_inside,
    locate_member,
    read_description,
    read_member,
    sha256,
    shown,
)
from teddy.distilled.folder import (
    FOLDER,
    class_directories,
    encode_png,
    find_distilled,
    image_names,
    numbered_directories,
    read_distilled,
    write_distilled,
)

__all__ = [
    "DESCRIPTION",
    "FOLDER",
    "FORMAT",
    "LABELS",
    "Description",
    "DistilledSet",
    "EvaluationTransform",
    "as_json",
    "class_directories",
    "encode_png",
    "find_distilled",
    "image_names",
    "is_inside",
    "locate_member",
    "numbered_directories",
    "read_description",
    "read_distilled",
    "read_member",
    "sha256",
    "shown",
    "write_distilled",
]
