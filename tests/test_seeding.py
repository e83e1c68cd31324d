import torch

from teddy import seeding


def test_a_stream_depends_on_seed_and_path_and_on_nothing_else():
    first = torch.rand(4, generator=seeding.stream(0, "pool", 3))
    torch.rand(100)
    assert torch.equal(first, torch.rand(4, generator=seeding.stream(0, "pool", 3)))
    for other in (seeding.stream(1, "pool", 3), seeding.stream(0, "pool", 4), seeding.stream(0, "student", 3)):
        assert not torch.equal(first, torch.rand(4, generator=other))


def test_derived_seeds_stay_what_they_are():
    # A change here changes every result that was ever published.
    assert seeding.derive(0, "pool", "network") == 4036596582141888446
    assert 0 <= seeding.derive(2**40, "x") < 2**63


def test_seeded_leaves_the_global_generator_as_it_was():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with seeding.seeded(0, "network"):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with seeding.seeded(0, "network"):
        assert torch.equal(torch.rand(3), inside)
