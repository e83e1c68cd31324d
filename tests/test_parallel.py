"""Two processes that train together, beside one that has whole batches."""

import pytest
import torch
from computed_together import NORMS, PARTS, SETTINGS, normalised, trained
from processes import run, torchrun
from safetensors.torch import load_file
from torch import Tensor, nn

from teddy.engine import Engine
from teddy.errors import TeddyError
from teddy.models.synchronised import with_synchronised_norms
from teddy.parallel import ALONE, Processes

Found = list[dict[str, Tensor]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Found:
    folder = tmp_path_factory.mktemp("together")
    script = request.path.with_name("computed_together.py")
    ended = run([*torchrun(2), str(script), str(folder)])
    assert ended.returncode == 0, ended.stderr
    return [load_file(folder / f"{rank}.safetensors") for rank in range(2)]


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


@pytest.mark.parametrize("name", NORMS)
def test_a_synchronised_norm_is_a_norm_of_the_whole_batch(name: str, found: Found):
    whole = normalised(name, slice(0, None), False)
    first, second = (under(f"{name}.", each) for each in found)
    assert first.keys() == second.keys() == whole.keys()
    for key in ("result", "gradient"):
        assert (len(first[key]), len(second[key])) == PARTS
        torch.testing.assert_close(torch.cat([first[key], second[key]]), whole[key])
    for key in whole.keys() - {"result", "gradient"}:
        if key.startswith("gradient."):  # each has its images' part of it
            torch.testing.assert_close(first[key] + second[key], whole[key])
        else:
            torch.testing.assert_close(first[key], whole[key])
            assert torch.equal(first[key], second[key])


def test_with_synchronised_norms_two_train_as_one(found: Found):
    whole = trained(ALONE)
    first, second = (under("synchronised.", each) for each in found)
    assert first.keys() == whole.keys()
    assert SETTINGS.training.ema
    for key, value in whole.items():
        torch.testing.assert_close(first[key], value, rtol=1e-4, atol=1e-6)
        assert torch.equal(first[key], second[key]), key


def test_with_norms_of_their_own_they_have_the_same_weights_and_others_than_one(found: Found):
    whole = trained(ALONE)
    first, second = (under("own.", each) for each in found)
    for key in (key for key in whole if key.startswith(("network.", "optimizer.")) and "running" not in key):
        assert torch.equal(first[key], second[key]), key
    weight = "network.features.0.weight"
    assert 1e-4 < (first[weight] - whole[weight]).abs().max() < 0.5
    assert torch.equal(first["losses"], second["losses"])  # the mean over all images


def test_a_norm_that_does_more_is_refused():
    class WithActivation(nn.BatchNorm2d):
        def forward(self, given: Tensor) -> Tensor:
            return super().forward(given).relu()

    with pytest.raises(TeddyError, match=r"engine\.synchronise_norms: the network has WithActivation"):
        with_synchronised_norms(nn.Sequential(WithActivation(3)))


def test_the_network_itself_keeps_its_norms():
    network = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)).eval()
    other = with_synchronised_norms(network)
    assert type(network[1]) is nn.BatchNorm2d
    assert other.training
    assert not network.training
    assert {id(tensor) for tensor in other.state_dict(keep_vars=True).values()} == {
        id(tensor) for tensor in network.state_dict(keep_vars=True).values()
    }


def test_what_an_engine_leaves_out_among_several_processes():
    full = Engine(torch.device("cpu"), half=True, compiles=True, captures=True, fuses=True)
    assert ALONE.suited(full) == full
    several = Processes(1, 2).suited(full)
    assert (several.half, several.compiles, several.captures, several.fuses) == (True, True, False, True)
    plain = Processes(1, 2, synchronise_norms=True).suited(full)
    assert (plain.half, plain.compiles, plain.captures, plain.fuses) == (True, False, False, False)
