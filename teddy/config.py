"""Typed, frozen configuration: every setting, its default, its meaning and its check in one place.

The defaults are the paper's settings for Tiny-ImageNet. A recipe (YAML) changes some of them, `--set key.path=value` a
few more; what results is written into the run folder and, given back as a recipe, repeats the run.
"""

import math
from typing import Annotated, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Optimizer = Literal["sgd", "adamw", "muon"]


class Settings(BaseModel):
    """Frozen and strict: an unknown key or a wrong type is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class AugmentSettings(Settings):
    """Random changes of an image, drawn for each image unless `shared`; everything off by default."""

    crop: tuple[Positive, Positive] | None = Field(None, description="share of the area a random resized crop keeps")
    ratio: tuple[Positive, Positive] = Field((3 / 4, 4 / 3), description="aspect ratio of that crop")
    scale: tuple[Positive, Positive] | None = Field(None, description="zoom, above 1 is larger, black outside")
    rotate: Weight = Field(0.0, description="largest angle in degrees, black outside")
    shift: Weight = Field(0.0, description="largest shift in pixels, black outside")
    flip: Share = Field(0.0, description="probability of a horizontal flip")
    roll: Whole = Field(0, description="largest cyclic shift in pixels")
    colour: tuple[Weight, Weight, Weight] | None = Field(
        None, description="brightness, saturation and contrast as DSA counts them; its own are 1, 2 and 0.5"
    )
    cutout: Share = Field(0.0, description="side of a square hole, as a share of the image's")
    shared: bool = Field(False, description="one draw for the whole batch, as SRe²L does")
    one_of: bool = Field(False, description="one of the kinds above for each batch, drawn too, as DSA does")

    @model_validator(mode="after")
    def _ranges_are_ordered(self) -> Self:
        for name in ("crop", "ratio", "scale"):
            bounds = getattr(self, name)
            if bounds and bounds[0] > bounds[1]:
                raise ValueError(f"{name}: the first bound {bounds[0]} is above the second {bounds[1]}")
        if self.crop and self.crop[1] > 1:
            raise ValueError(f"crop: keeps at most all of the image, 1.0, not {self.crop[1]}")
        return self


class MixedAugmentSettings(AugmentSettings):
    """The augmentation A of Algorithm 1: what students see and teachers label."""

    cutmix: Weight = Field(1.0, description="alpha of CutMix's Beta distribution, 0 is off")


class TrainingSettings(Settings):
    """How a network is trained, teachers and students alike."""

    epochs: Count
    batch_size: Count
    optimizer: Optimizer
    learning_rate: Positive
    weight_decay: Weight
    momentum: Share = 0.9
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    cosine_slowed: Annotated[float, Field(ge=1)] = Field(
        1.0, description="the cosine as if training took so many times longer"
    )
    step_epochs: Count = Field(30, description="'step' divides the learning rate by ten every so many epochs")
    warmup_epochs: Whole = 0
    ema: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="decay of the weights' moving average, which is then the result"
    )

    @model_validator(mode="after")
    def _warmup_fits(self) -> Self:
        if self.warmup_epochs >= self.epochs:
            raise ValueError(f"warmup_epochs: {self.warmup_epochs} leaves nothing of {self.epochs} epochs")
        return self


class TeacherTrainingSettings(TrainingSettings):
    """Training on real images with their own labels; the defaults are the paper's for Tiny-ImageNet."""

    epochs: Count = 50
    batch_size: Count = 256
    optimizer: Optimizer = "sgd"
    learning_rate: Positive = 0.2
    weight_decay: Weight = 1e-4
    augment: AugmentSettings = AugmentSettings(crop=(0.08, 1.0), flip=0.5)


class StudentTrainingSettings(TrainingSettings):
    """Training on a small set; the defaults are the paper's for Tiny-ImageNet."""

    epochs: Count = 100
    batch_size: Count = 256
    optimizer: Optimizer = "adamw"
    learning_rate: Positive = 1e-3
    weight_decay: Weight = 0.01


class DataSettings(Settings):
    """Where the real images come from."""

    source: Annotated[str, Field(min_length=1)]
    image_size: Annotated[int, Field(ge=8)] | None = Field(
        None, description="side in pixels; null keeps the images' own where they agree, else 64"
    )
    test_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="held out for testing where the source has no split of its own"
    )
    mean: tuple[float, ...] | None = Field(
        None,
        description="of the normalisation, a number a channel; null is measured. Weights made elsewhere bring theirs",
    )
    std: tuple[Positive, ...] | None = Field(None, description="likewise")
    class_order: str | None = Field(None, description="a file with a class name a line, where the order matters")
    loader: Literal["auto", "resident", "streamed"] = Field(
        "auto", description="all pixels on the device, or decoded when needed; auto by size against memory"
    )
    workers: Whole | None = Field(None, description="processes that decode; null by cores and number of images")
    skip_bad: Whole = Field(0, description="unreadable images to go on without, at most")

    @model_validator(mode="after")
    def _normalisation_is_whole(self) -> Self:
        if (self.mean is None) != (self.std is None) or len(self.mean or ()) != len(self.std or ()):
            raise ValueError("mean: mean and std belong together, a number for each channel")
        return self


class FineTuningSettings(Settings):
    """How pruned members are trained on, and which accuracies they are to have."""

    epochs: Weight = Field(1.0, description="at most; a member ends sooner when it has its accuracy. The paper: 0 to 2")
    learning_rates: tuple[Positive, Positive] = Field(
        (0.1, 0.001), description="of the weakest member and of the strongest, geometric in between"
    )
    curve: Annotated[tuple[Share, ...], Field(min_length=2)] = Field(
        (0.72, 0.85, 1.0), description="accuracies, weakest first, as shares of the base's; lines in between"
    )
    follow: str | None = Field(None, description="a prior pool whose accuracies are the curve instead")
    batch_size: Count = 256
    momentum: Share = 0.9
    weight_decay: Weight = 1e-4


class PruningSettings(Settings):
    """Post generation: members are the base with random channels removed, then briefly trained on."""

    members: Count = 9
    target: Literal["macs", "parameters"] = "macs"
    keep: Positive = Field(0.66, description="of the base's: a share up to 1, or a number above")
    finetuning: FineTuningSettings = FineTuningSettings()


class PoolSettings(Settings):
    """The weak teachers, from one base network (Algorithm 1) or several.

    Prior generation takes snapshots at T_b, T_b + m, … up to T_e of the base's training; post generation prunes a base
    that is well trained.
    """

    generation: Literal["auto", "prior", "post"] = Field(
        "auto", description="auto looks at the base: prior from a random or early one, post from a well-trained one"
    )
    network: str = "resnet18"
    bases: Count = Field(
        1, description="prior generation: so many bases, each with a random start of its own; the paper has one"
    )
    weights: str | None = Field(
        None, description="the base's weights, safetensors or .pth; null trains it here from the start"
    )
    unit: Literal["epochs", "iterations"] = Field("epochs", description="of first, last and every")
    first: Whole = Field(11, description="T_b; 0 is the base as it is")
    last: Count = Field(46, description="T_e; training goes no further, and T_e is always a member")
    every: Count = Field(5, description="m")
    training: TeacherTrainingSettings = TeacherTrainingSettings()
    pruning: PruningSettings = PruningSettings()
    class_means: bool = Field(True, description="measure them; class-wise statistics need them")
    folder: str | None = Field(None, description="a pool that is there already; made as the rest of this section says")

    @property
    def snapshots(self) -> tuple[int, ...]:
        """When a snapshot of a base is taken: 16–50 step 5 gives the paper's eight because T_e is appended."""
        return tuple(sorted({*range(self.first, self.last + 1, self.every), self.last}))

    @property
    def size(self) -> int:
        """Members; where the generation is not known yet, as many as there will be at least."""
        sizes = {"prior": self.bases * len(self.snapshots), "post": self.pruning.members}
        if self.generation == "auto":
            return min(sizes.values()) if self.weights else sizes["prior"]
        return sizes[self.generation]

    @model_validator(mode="after")
    def _snapshots_are_ordered(self) -> Self:
        if self.first > self.last:
            raise ValueError(f"first: {self.first} is after last, {self.last}")
        if self.unit == "epochs" and self.generation != "post" and self.last > self.training.epochs:
            raise ValueError(f"last: {self.last} is beyond the {self.training.epochs} of training.epochs")
        if self.bases > 1 and (self.weights or self.generation == "post"):
            raise ValueError(f"bases: {self.bases} are for prior generation from random starts; leave it at 1")
        return self


class MethodSettings(Settings):
    """How the images are made; the defaults are the paper's for Tiny-ImageNet, with a prior pool."""

    name: str = "teddy"
    initial: Literal["noise", "real", "typical"] = Field(
        "noise",
        description="what the images start from; 'typical' are real ones from the middle of as many clusters of each "
        "class's features, which the strongest teacher gives",
    )
    tiles: Count = Field(
        1,
        description="not from noise: so many real images, made smaller, along each side of one; 2 is a mosaic of four",
    )
    kept: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="not from noise: this share of each class's real images, rounded down, stays as it is"
    )
    statistics: Literal["global", "class-wise", "both"] = Field(
        "global", description="Eq. 6, Proposition 2's form before balance is assumed, or their sum"
    )
    global_weight: Weight = Field(1.0, description="of the statistics of Eq. 6")
    class_wise_weight: Weight = Field(1.0, description="of the class means")
    class_wise_layers: Literal["last", "every"] = Field(
        "last", description="class means of the last features, or at every normalisation layer too"
    )
    targets: Literal["measured", "drawn"] = Field(
        "measured",
        description="class means of all training images, measured once for each teacher; or of some that are drawn "
        "anew in every iteration and augmented in the same draw as the made ones",
    )
    real_images: Count = Field(50, description="drawn of each class, if so")
    map_weight: Weight = Field(
        0.0, description="of class means at every position of what convolutions are given; with targets that are drawn"
    )
    variance_weight: Weight = Field(
        0.0, description="of the variances of the last features in each class; with targets that are drawn"
    )
    readout_weight: Weight = Field(
        0.0,
        description="of the error on real images of a readout of all layers' features that is solved for on the made "
        "ones; with targets that are drawn",
    )
    classifier_weight: Weight = Field(1.0, description="u of Eq. 6")
    teachers: Count = Field(3, description="n: teachers drawn from the pool for each image index")
    redraw: bool = Field(
        False, description="draw them anew in every iteration (Algorithm 1) rather than once per index (its text)"
    )
    turns: Literal["all", "one"] = Field("all", description="all n teachers in every step, or one after the other")
    classes_per_group: Count = Field(100, description="classes whose images share their statistics")
    images_per_class: Count = Field(1, description="images of each class in such a group; the paper takes one")
    iterations: Count = 4000
    learning_rate: Positive = 0.1
    weight_decay: Weight = Field(1e-4, description="on the pixels")
    residual: Share = Field(0.0, description="of the images of the beginning, mixed in again on the way")
    residual_times: Count = Field(3, description="so often, at even distances")
    augment: AugmentSettings = AugmentSettings(crop=(0.08, 1.0), flip=0.5, roll=4)

    def made(self, ipc: int) -> int:
        """How many of a class's images are made, and not kept as they are; those come first."""
        return ipc - math.floor(self.kept * ipc + 1e-9)

    @model_validator(mode="after")
    def _no_noise_is_kept(self) -> Self:
        if self.kept and self.initial == "noise":
            raise ValueError(f"kept: {self.kept} of the images would stay noise; set initial to real or typical")
        return self

    @model_validator(mode="after")
    def _what_is_drawn_is_used(self) -> Self:
        if self.targets == "drawn" and self.statistics == "global":
            raise ValueError("targets: 'drawn' are for class means; set statistics to class-wise or both")
        for which in ("map_weight", "variance_weight", "readout_weight"):
            if self.targets == "measured" and getattr(self, which):
                raise ValueError(f"{which}: only for real images that are drawn; set targets to drawn")
        return self

    @model_validator(mode="after")
    def _something_is_minimised(self) -> Self:
        matched = {"global": self.global_weight, "class-wise": self.class_wise_weight}
        matched["both"] = sum(matched.values())
        if not matched[self.statistics] + self.classifier_weight:
            raise ValueError(
                f"classifier_weight: all weights of statistics '{self.statistics}' are 0, nothing to minimise"
            )
        return self


class RelabelSettings(Settings):
    """Ensemble soft labels of augmented images."""

    teachers: Count | Literal["all"] = Field(
        "all", description="the whole pool, or so many spread evenly over it, the last one included"
    )
    at_once: Count | None = Field(
        None,
        description="so many of them label at the same time, the weakest first, the strongest from seven tenths of the "
        "students' epochs on; null is all of them, always",
    )
    average: Literal["logits", "probabilities"] = "logits"
    statistics: Literal["running", "batch"] = Field(
        "running", description="what teachers normalise by when they label augmented images: their own, or the batch's"
    )
    temperature: Positive = 20.0
    labels: Literal["online", "stored"] = Field(
        "online", description="from the pool in every step, or stored with their augmentations for the students' epochs"
    )
    top_k: Count | None = Field(
        None, description="stored: so many classes a label, the rest spread evenly; null is all"
    )
    stored_epochs: Count | None = Field(None, description="stored: so many epochs, used again in turn; null is all")
    budget_mb: Positive | None = Field(
        None, description="stored: what does not fit is cut down, epochs first, then classes"
    )
    augment: MixedAugmentSettings = MixedAugmentSettings(crop=(0.08, 1.0), flip=0.5)

    @model_validator(mode="after")
    def _what_is_stored_can_be_stored(self) -> Self:
        if self.labels == "stored" and (self.augment.colour or self.augment.cutout):
            raise ValueError("labels: stored labels know no colours and holes; leave labels online, or augment without")
        if self.at_once and self.labels == "stored" and (self.stored_epochs or self.budget_mb):
            raise ValueError(
                "at_once: epochs that are used again would bring the weak teachers back; leave stored_epochs and "
                "budget_mb out, or at_once"
            )
        return self


class EvaluationSettings(Settings):
    """Students trained from scratch, on the distilled set and on its controls, all in the same way."""

    networks: Annotated[tuple[str, ...], Field(min_length=1)] = ("resnet18",)
    seeds: Count = 3
    labels: Annotated[tuple[Literal["soft", "hard"], ...], Field(min_length=1)] = Field(
        ("soft", "hard"), description="which rows are trained; each with its control"
    )
    hard_seeds: Count | None = Field(
        None, description="students with hard labels, of either row, at most seeds; null as many"
    )
    loss: Literal["kl", "mse"] = Field(
        "kl", description="KL divergence with temperature, or squared distance of the logits"
    )
    hard_share: Share = Field(0.0, description="of cross-entropy with the hard labels, added to the soft loss")
    training: StudentTrainingSettings = StudentTrainingSettings()
    full_data: TeacherTrainingSettings = TeacherTrainingSettings()
    full_data_seeds: Whole = Field(1, description="0 leaves the full data out, which is the longest training")


class EngineSettings(Settings):
    """How it is computed; each chooses itself by the device."""

    precision: Literal["auto", "float32", "bfloat16"] = Field("auto", description="bf16 on a GPU that has it")
    compile: Literal["auto"] | bool = Field("auto", description="on a GPU, where there are steps enough")
    groups: Count | Literal["auto"] = Field(
        "auto", description="groups of images in one pass through a teacher, at most; fewer where memory runs out"
    )
    students: Count | Literal["auto"] = Field(
        "auto", description="students of a row trained at the same time, at most; on a GPU several small ones"
    )
    data_parallel: Literal["auto"] | bool = Field(
        "auto",
        description="under torchrun all processes train the pool's base together, each on its part of every batch; "
        "auto where each has a GPU",
    )
    synchronise_norms: bool = Field(
        False, description="then BatchNorm takes its statistics over the whole batch, as on one process; slower"
    )


class PoolConfig(Settings):
    """Everything that decides a pool, and the device it is made on."""

    data: DataSettings
    seed: Whole = 0
    device: str = Field("auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")
    engine: EngineSettings = EngineSettings()
    pool: PoolSettings = PoolSettings()

    def to_yaml(self) -> str:
        """The resolved configuration, as a recipe that repeats the run."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


class Config(PoolConfig):
    """Everything that decides a run's result."""

    ipc: Count = Field(description="images per class")
    method: MethodSettings = MethodSettings()
    relabel: RelabelSettings = RelabelSettings()
    evaluation: EvaluationSettings = EvaluationSettings()

    @model_validator(mode="after")
    def _pool_is_large_enough(self) -> Self:
        size = self.pool.size
        if self.method.teachers > size:
            raise ValueError(f"method.teachers: draws {self.method.teachers} of a pool of {size}")
        if self.relabel.teachers != "all" and self.relabel.teachers > size:
            raise ValueError(f"relabel.teachers: takes {self.relabel.teachers} of a pool of {size}")
        labelling = size if self.relabel.teachers == "all" else self.relabel.teachers
        if self.relabel.at_once and self.relabel.at_once > labelling:
            raise ValueError(f"relabel.at_once: takes {self.relabel.at_once} of {labelling} teachers that label")
        needed = self.method.statistics != "global" and self.method.targets == "measured"
        if needed and not self.pool.class_means:
            raise ValueError(
                f"pool.class_means: statistics '{self.method.statistics}' need them, and they are off; "
                "or set method.targets=drawn"
            )
        return self
