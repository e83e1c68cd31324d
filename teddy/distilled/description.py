"""`dataset.json`: what a distilled set says about itself, and how it is believed.

A set may come from a stranger: every size, shape, name and checksum is checked before anything is made of it.
"""

import hashlib
import json
import re
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, FailFast, Field, ValidationError, model_validator

from teddy.config import Count, Settings, Whole
from teddy.errors import TeddyError

FORMAT: Final = 2
DESCRIPTION = "dataset.json"
LABELS = "labels.safetensors"
FIT: Final = "bicubic; shorter side to size, middle cut out"
DAMAGED = "the set is damaged or not Teddy's, get it anew"

MOST_DESCRIPTION_BYTES = 2**26  # several hundred thousand images
MOST_CONFIG_BYTES = 2**20
MOST_PIXEL_BYTES = 2**34  # ImageNet-1k at 224 × 224 and IPC 100 fits

Text = Annotated[str, Field(min_length=1, max_length=1000)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(min_length=1, max_length=1000)]


class Stated(Settings):
    """Something a description says; numbers are finite."""

    model_config = ConfigDict(allow_inf_nan=False)


class StatedFile(Stated):
    """A file of the set: where it is, what it hashes to."""

    name: Name
    sha256: Sha256


class StatedImage(StatedFile):
    """An image, with the class it shows."""

    label: Whole


class StatedPreprocessing(Stated):
    """How an image becomes what students were tested on: fitted, scaled to `value_range`, normalised."""

    image_size: Annotated[int, Field(ge=1, le=4096)]
    channels: Annotated[int, Field(ge=1, le=3)]
    mean: tuple[Annotated[float, Field(ge=0, le=1)], ...]
    # As float32 a smaller deviation could make infinite images.
    std: tuple[Annotated[float, Field(gt=1e-6, le=1)], ...]
    value_range: tuple[Literal[0], Literal[1]] = (0, 1)
    interpolation: Literal["bicubic; shorter side to size, middle cut out"] = FIT

    @model_validator(mode="after")
    def _channels_agree(self) -> Self:
        if self.channels == 2:
            raise ValueError("channels: are 1 for grey, 3 for colour")
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(
                f"mean and std have {len(self.mean)} and {len(self.std)} values for {self.channels} channels"
            )
        return self


class Description(Stated):
    """`dataset.json`: all there is to know about the set, and a checksum of every other file."""

    format: Literal[2]
    source: Text
    method: Text
    ipc: Count
    classes: Annotated[tuple[Text, ...], FailFast(), Field(min_length=1, max_length=100_000)]
    preprocessing: StatedPreprocessing
    images: Annotated[tuple[StatedImage, ...], FailFast(), Field(min_length=1, max_length=1_000_000)]
    other_files: Annotated[tuple[StatedFile, ...], FailFast(), Field(max_length=1000)]
    statistics: dict[str, Any]
    versions: dict[str, Any]
    config: dict[str, Any]

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("classes: two have the same name")
        if bad := next((image for image in self.images if image.label >= len(self.classes)), None):
            raise ValueError(
                f"images: label {bad.label} of {shown(bad.name)} is beyond the {len(self.classes)} classes"
            )
        names = list(self.checksums)
        if len(names) < len(self.images) + len(self.other_files):
            raise ValueError("images: two have the same name")
        if bad_name := next((name for name in names if not is_inside(name)), None):
            raise ValueError(f"images: {shown(bad_name)} is no plain path inside the set")
        if bad_name := next((image.name for image in self.images if not image.name.endswith(".png")), None):
            raise ValueError(f"images: {shown(bad_name)} is no PNG file")
        if LABELS not in {file.name for file in self.other_files}:
            raise ValueError(f"other_files: {LABELS} is missing")
        if len(self.images) * self.image_bytes > MOST_PIXEL_BYTES:
            raise ValueError(f"images: more than {MOST_PIXEL_BYTES / 1e9:.0f} GB of pixels")
        bounded = {"statistics": self.statistics, "versions": self.versions, "config": self.config}
        for key, told in bounded.items():
            if len(json.dumps(told, allow_nan=False)) > MOST_CONFIG_BYTES:
                raise ValueError(f"{key}: is larger than {MOST_CONFIG_BYTES} bytes")
        return self

    @cached_property
    def checksums(self) -> dict[str, str]:
        """Name → sha256 of every file but the description itself."""
        return {file.name: file.sha256 for file in (*self.images, *self.other_files)}

    @property
    def image_bytes(self) -> int:
        """Of one image's pixels."""
        return self.preprocessing.channels * self.preprocessing.image_size**2


def read_description(folder: Path) -> Description:
    """The checked description of the set in `folder`."""
    path = folder / DESCRIPTION
    if not path.exists() and not path.is_symlink():
        raise TeddyError(f"{folder}: not a distilled set (no {DESCRIPTION} in it)")
    content = _read_inside(folder, DESCRIPTION, MOST_DESCRIPTION_BYTES)
    try:
        return Description.model_validate_json(content)
    except ValidationError as error:
        raise TeddyError(f"{path}: {first_mistake(error)}; {DAMAGED}") from None


def read_member(folder: Path, description: Description, name: str, most_bytes: int) -> bytes:
    """A file of the set, if it is the one the description was written for."""
    content = _read_inside(folder, name, most_bytes)
    if sha256(content) != description.checksums.get(name):
        raise TeddyError(f"{folder / name}: has another checksum than {DESCRIPTION} states; {DAMAGED}")
    return content


def as_json(tree: Any) -> bytes:
    """A JSON file's content."""
    return (json.dumps(tree, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def sha256(content: bytes) -> str:
    """Checksum in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def is_inside(name: str) -> bool:
    """Whether a name is a plain relative path on every system: no way up, no root, no drive, no odd characters."""
    parts = name.split("/")
    return not re.search(r"[\x00-\x1f\x7f\\:]", name) and not {"", ".", ".."} & set(parts) and name != DESCRIPTION


def shown(name: str) -> str:
    """A stranger's text, quoted, escaped and short enough for one line."""
    return repr(name if len(name) <= 80 else f"{name[:80]}…")


def locate_member(folder: Path, name: str) -> Path:
    """The regular file behind a name, links followed; raises if there is none or it lies outside `folder`."""
    try:
        path = (folder / name).resolve()
        regular, inside = path.is_file(), path.is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # endless links, names that no file can have
        raise TeddyError(f"{folder}: {shown(name)} is no file; {DAMAGED}") from None
    if not inside:
        raise TeddyError(f"{folder / name}: is a link to outside of the set; {DAMAGED}")
    if not regular:
        state = "is no regular file" if path.exists() else "is missing"
        raise TeddyError(f"{folder / name}: {state}; {DAMAGED}")
    return path


def _read_inside(folder: Path, name: str, most_bytes: int) -> bytes:
    path = locate_member(folder, name)
    try:
        with path.open("rb") as file:
            # Not more than is there at once: a read makes room for all that it may get.
            content = file.read(min(path.stat().st_size, most_bytes) + 1)
    except OSError as error:
        raise TeddyError(f"{folder / name}: cannot be read ({error.strerror})") from None
    if len(content) > most_bytes:
        raise TeddyError(f"{folder / name}: is larger than the {most_bytes} bytes it may have; {DAMAGED}")
    return content


def first_mistake(error: ValidationError) -> str:
    """What is wrong, in words that fit on a line."""
    if error.error_count() > 1000:  # listing them all would take minutes
        return f"{error.error_count()} mistakes"
    first = error.errors(include_url=False)[0]
    path = ".".join(shown(part)[1:-1] if isinstance(part, str) else str(part) for part in first["loc"][:6])
    if first["type"] == "value_error":
        return f"{path}: {first['ctx']['error']}" if path else str(first["ctx"]["error"])
    message = " ".join(first["msg"].split())[:200]
    return f"{path}: {message[0].lower()}{message[1:]}" if path else message
