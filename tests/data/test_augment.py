"""Augmentation against slices, rolls and counted pixels."""

from collections import Counter

import pytest
import torch
from torch.nn import functional as F

from teddy import seeding
from teddy.config import AugmentSettings
from teddy.data.augment import (
    affine_maps,
    apply_change,
    apply_mix,
    crop_sides,
    draw_change,
    draw_mix,
    joined,
    resample,
    roll_each,
)
from teddy.data.colour import coloured, draw_colours, with_holes
from teddy.data.memory import brought

IMAGES = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def stream(number: int = 0) -> torch.Generator:
    return seeding.stream(0, "test", number)


def augment(images: torch.Tensor, generator: torch.Generator, **settings: object) -> torch.Tensor:
    return apply_change(images, draw_change(len(images), *images.shape[-2:], generator, **settings))  # type: ignore[arg-type]


def cutmix(images: torch.Tensor, targets: torch.Tensor, number: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return apply_mix(images, targets, draw_mix(len(images), *images.shape[-2:], 1.0, stream(number)))


def box_map(left: float, top: float, right: float, bottom: float) -> torch.Tensor:
    """The map of a crop given in pixels of an 8 × 8 image."""
    width, height = (right - left) / 8, (bottom - top) / 8
    return torch.tensor([[[width, 0, (left + right) / 8 - 1], [0, height, (top + bottom) / 8 - 1]]])


def test_nothing_asked_for_changes_nothing():
    assert torch.equal(augment(IMAGES, stream(), **AugmentSettings().model_dump()), IMAGES)


def test_a_crop_is_the_slice_enlarged():
    cropped = resample(IMAGES[:1], box_map(2, 4, 6, 8))
    expected = F.interpolate(IMAGES[:1, :, 4:8, 2:6], size=8, mode="bilinear", align_corners=False)
    # Inside; at the border of the slice the crop sees the pixels beyond it, a slice does not.
    torch.testing.assert_close(cropped[..., 1:-1, 1:-1], expected[..., 1:-1, 1:-1])


def test_a_sure_flip_is_a_mirror():
    torch.testing.assert_close(augment(IMAGES, stream(), flip=1.0), IMAGES.flip(3))


def test_flips_come_as_often_as_asked():
    many = torch.arange(8.0).expand(4000, 1, 8, 8)
    flipped = augment(many, stream(), flip=0.3)[:, 0, 0, 0] > 3.5
    assert flipped.float().mean().item() == pytest.approx(0.3, abs=0.03)


def test_a_rotation_by_a_quarter_turn():
    quarter = torch.tensor([[[0.0, -1.0, 0.0], [1.0, 0.0, 0.0]]])
    torch.testing.assert_close(resample(IMAGES[:1], quarter), IMAGES[:1].rot90(1, (2, 3)))


def test_angles_and_zooms_stay_in_range():
    options = {"crop": None, "ratio": (1.0, 1.0), "shift": (0.0, 0.0), "flip": 0.0}
    maps = affine_maps(2000, stream(), scale=(0.8, 1.25), rotate=20, **options)
    zoom = 1 / maps[:, :, :2].det().sqrt()
    angle = torch.atan2(maps[:, 1, 0], maps[:, 0, 0]).rad2deg()
    assert zoom.min() >= 0.8 - 1e-4
    assert zoom.max() <= 1.25 + 1e-4
    assert angle.abs().max() <= 20 + 1e-3
    assert angle.abs().max() > 19


def test_outside_of_the_image_is_the_fill():
    shifted = resample(torch.ones(1, 1, 8, 8), box_map(4, 0, 12, 8), torch.tensor([[[-3.0]]]))
    torch.testing.assert_close(shifted[..., :3], torch.ones(1, 1, 8, 3))
    torch.testing.assert_close(shifted[..., 5:], torch.full((1, 1, 8, 3), -3.0))


def test_crops_keep_the_share_of_area_and_ratio_asked_for():
    draws = torch.rand(2, 5000, generator=stream())
    width, height = crop_sides(draws[0], draws[1], (0.08, 0.5), (3 / 4, 4 / 3))
    area, ratio = width * height, width / height
    assert area.min() >= 0.08 - 1e-4
    assert area.max() <= 0.5 + 1e-4
    assert area.mean().item() == pytest.approx(0.29, abs=0.01)
    assert ratio.min() >= 3 / 4 - 1e-4
    assert ratio.max() <= 4 / 3 + 1e-4


def test_crops_lie_inside_the_image():
    maps = affine_maps(
        2000, stream(), crop=(0.08, 1.0), ratio=(3 / 4, 4 / 3), scale=None, rotate=0, shift=(0.0, 0.0), flip=0.5
    )
    reach = maps[:, :, :2].abs().sum(2) + maps[:, :, 2].abs()
    assert reach.max() <= 1 + 1e-5


def test_each_image_has_a_draw_of_its_own_unless_shared():
    same = IMAGES[:1].expand(6, 3, 8, 8)
    own = augment(same, stream(), crop=(0.08, 1.0), roll=2)
    shared = augment(same, stream(), crop=(0.08, 1.0), roll=2, shared=True)
    assert len({tuple(image.flatten().tolist()) for image in own}) == 6
    assert len({tuple(image.flatten().tolist()) for image in shared}) == 1


def test_roll_is_torch_roll_image_by_image():
    offsets = torch.tensor([[0, 0], [1, 0], [0, -2], [3, 5], [-1, -1], [8, 8]])
    rolled = roll_each(IMAGES, offsets)
    for image, (down, right), result in zip(IMAGES, offsets.tolist(), rolled, strict=True):
        assert torch.equal(result, image.roll((down, right), (1, 2)))


def test_rolls_reach_both_ends_of_their_range():
    marked = torch.zeros(3000, 1, 8, 8)
    marked[:, :, 0, 0] = 1
    places = augment(marked, stream(), roll=2)[:, 0].flatten(1).argmax(1).tolist()
    assert {place // 8 for place in places} == {0, 1, 2, 6, 7}
    assert min(Counter(place // 8 for place in places).values()) > 500


def test_augmentation_passes_gradients():
    images = IMAGES.clone().requires_grad_()
    augment(images, stream(), crop=(0.5, 1.0), rotate=10, flip=0.5, roll=2).sum().backward()
    assert images.grad is not None
    assert images.grad.abs().sum() > 0


def test_cutmix_labels_are_the_shares_of_the_pixels():
    # Each image is of one value, its own number: the pixels tell whose they are.
    images = torch.arange(6.0)[:, None, None, None].expand(6, 1, 8, 8).clone()
    targets = torch.eye(6)
    seen = set()
    for number in range(200):
        mixed, labels = cutmix(images, targets, number)
        for image, label in zip(mixed, labels, strict=True):
            counted = torch.bincount(image.flatten().long(), minlength=6) / 64
            torch.testing.assert_close(label, counted)
        torch.testing.assert_close(labels.sum(1), torch.ones(6))
        seen.add(round(float(labels.max()), 3))
    assert len(seen) > 12


def test_cutmix_leaves_its_inputs_alone():
    before = IMAGES.clone()
    cutmix(IMAGES, torch.eye(6))
    assert torch.equal(before, IMAGES)


def test_cutmix_boxes_average_half_of_the_image_before_they_are_cut_off():
    blank = torch.zeros(6, 1, 32, 32)
    kept = [float(cutmix(blank, torch.eye(6), number)[1].diagonal().min()) for number in range(400)]
    # λ ~ U(0, 1) keeps ½ on average; boxes that stick out of the image keep more.
    assert 0.55 < sum(kept) / len(kept) < 0.75


def test_a_crop_and_a_roll_are_one_after_the_other():
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(5, 3, 8, 6, generator=generator)
    change = draw_change(5, 8, 6, generator, crop=(0.3, 1.0), flip=0.5, roll=3)
    assert change.maps is not None
    assert change.offsets is not None
    expected = roll_each(resample(images, change.maps), change.offsets)
    torch.testing.assert_close(apply_change(images, change), expected)


def test_colours_by_hand():
    images = torch.tensor([[1.0, 3.0], [5.0, 7.0]]).view(1, 2, 1, 2)  # two channels, two pixels
    brighter = coloured(images, torch.tensor([[0.5, 1.0, 1.0]]))
    torch.testing.assert_close(brighter, images + 0.5)
    grey = coloured(images, torch.tensor([[0.0, 0.0, 1.0]]))  # the channels' mean in each pixel
    torch.testing.assert_close(grey, torch.tensor([3.0, 5.0]).view(1, 1, 1, 2).expand(1, 2, 1, 2))
    flat = coloured(images, torch.tensor([[0.0, 1.0, 0.5]]))  # halfway to the image's mean, 4
    torch.testing.assert_close(flat, torch.tensor([[2.5, 3.5], [4.5, 5.5]]).view(1, 2, 1, 2))
    torch.testing.assert_close(coloured(images, draw_colours(1, torch.Generator(), None)), images)


def test_colours_are_drawn_as_dsa_does():
    drawn = draw_colours(2000, torch.Generator().manual_seed(0), (1.0, 2.0, 0.5))
    for column, (low, high) in zip(drawn.T, [(-0.5, 0.5), (0.0, 2.0), (0.5, 1.5)], strict=True):
        assert low <= column.min() < low + 0.01
        assert high - 0.01 < column.max() <= high


def test_a_hole_is_a_square_of_the_mean_colour_cut_off_at_the_edge():
    images = torch.ones(2, 3, 8, 8)
    made = with_holes(images, torch.tensor([[0.5, 0.25, 0.5], [0.0, 1.0, 0.5]]))
    assert (made[0, :, 2:6, 0:4] == 0).all()
    assert made[0].sum() == 3 * (64 - 16)
    assert (made[1, :, :2, 6:] == 0).all()
    assert made[1].sum() == 3 * (64 - 4)


def test_one_kind_of_change_a_batch_is_drawn_and_the_others_change_nothing():
    kinds = {"shift": 2.0, "flip": 0.5, "rotate": 15.0, "scale": (0.8, 1.2), "colour": (1.0, 2.0, 0.5), "cutout": 0.5}
    images = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    seen = set()
    for seed in range(60):
        change = draw_change(16, 8, 8, torch.Generator().manual_seed(seed), one_of=True, **kinds)
        assert change.maps is not None
        assert change.colours is not None
        assert change.holes is not None
        alone = {
            "moved": not torch.equal(change.maps, torch.eye(2, 3).expand(16, 2, 3)),
            "coloured": not torch.equal(change.colours, torch.tensor([0.0, 1.0, 1.0]).expand(16, 3)),
            "cut": bool((change.holes[:, 2] > 0).any()),
        }
        assert sum(alone.values()) <= 1
        seen |= {name for name, there in alone.items() if there}
        if not any(alone.values()):
            continue
        assert not torch.equal(apply_change(images, change), images)
    assert seen == {"moved", "coloured", "cut"}
    nothing = draw_change(16, 8, 8, torch.Generator(), one_of=True)
    assert apply_change(images, nothing) is images


def test_all_kinds_of_change_are_joined():
    kinds = {"roll": 2, "flip": 0.5, "colour": (1.0, 2.0, 0.5), "cutout": 0.5, "one_of": True}
    images = torch.randn(6, 3, 8, 8)
    changes = [draw_change(3, 8, 8, torch.Generator().manual_seed(seed), **kinds) for seed in (1, 5)]
    apart = torch.cat([apply_change(part, change) for part, change in zip(images.split(3), changes, strict=True)])
    torch.testing.assert_close(apply_change(images, joined(changes)), apart)


SHARED = {"crop": (0.3, 1.0), "flip": 0.5, "roll": 2, "colour": (1.0, 2.0, 0.5), "cutout": 0.5, "shared": True}


def test_draws_that_a_batch_shares_can_be_pinned(monkeypatch: pytest.MonkeyPatch):
    class Pinned(torch.Tensor):
        def to(self, *_: object, **__: object) -> torch.Tensor:  # type: ignore[override]
            return self

    def pin_memory(values: torch.Tensor) -> torch.Tensor:
        assert values.is_contiguous()  # a GPU's driver writes each place once
        return values.as_subclass(Pinned)

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    change = draw_change(4, 8, 8, stream(), **SHARED)  # type: ignore[arg-type]
    brought_there = change.each(lambda part: brought(part, torch.device("cuda")))
    assert brought_there.maps is not None
    assert brought_there.offsets is not None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("settings", [SHARED, SHARED | {"shared": False}, SHARED | {"one_of": True}])
def test_a_change_is_the_same_on_a_gpu(settings: dict[str, object]):
    change = draw_change(6, 8, 8, stream(), **settings)  # type: ignore[arg-type]
    there = apply_change(IMAGES.cuda(), change).cpu()
    torch.testing.assert_close(there, apply_change(IMAGES, change), rtol=1e-4, atol=1e-4)
