"""Every recipe that ships is a whole and valid one."""

import re
from pathlib import Path

import pytest

from teddy.errors import TeddyError
from teddy.methods import METHODS
from teddy.recipes import find_recipe, fitting_recipe, headline, shipped_recipes
from teddy.resolve import resolve


def test_there_are_recipes():
    assert {"digits/teddy_ipc1", "digits/teddy_ipc10"} <= set(shipped_recipes())


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_recipe_is_valid_and_named_after_what_it_is_for(name: str):
    match = re.fullmatch(r"(?P<source>[\w-]+)/(?P<method>[a-z0-9]+)(_\w+)?_ipc(?P<ipc>\d+)", name)
    assert match
    config = resolve(match["source"], ipc=int(match["ipc"]), method=None, recipe=name, settings=())
    assert config.method.name == {"best": "teddy"}.get(match["method"], match["method"])
    assert config.method.name in METHODS


@pytest.mark.parametrize(("name", "path"), shipped_recipes().items())
def test_a_recipe_says_what_it_is_how_it_runs_and_what_to_expect(name: str, path: Path):
    header = "\n".join(line for line in path.read_text().splitlines() if line.startswith("#"))
    assert len(headline(path)) > 20
    assert f"teddy distill {name.split('/')[0]}" in header
    assert re.search(r"takes .*\d (s|min|h)\b", header, re.IGNORECASE)
    assert re.search(r"expect", header, re.IGNORECASE)


def test_the_nearest_ipc_is_taken():
    assert fitting_recipe("digits", "teddy", 1) == "digits/teddy_ipc1"
    assert fitting_recipe("digits", "teddy", 50) == "digits/teddy_ipc10"
    assert fitting_recipe("nothing", "teddy", 1) is None


def test_the_best_recipe_is_taken_first_but_not_for_another_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "birds").mkdir()
    for name in ("best_ipc10", "teddy_ipc10", "teddy_ipc50", "teddy_other_ipc40", "sre2l_ipc1"):
        (tmp_path / "birds" / f"{name}.yaml").touch()
    monkeypatch.setattr("teddy.recipes.FOLDER", tmp_path)
    assert fitting_recipe("birds", "teddy", 10) == "birds/best_ipc10"
    assert fitting_recipe("birds", "teddy", 40) == "birds/teddy_ipc50"
    assert fitting_recipe("birds", "sre2l", 10) == "birds/sre2l_ipc1"


def test_a_recipe_may_be_a_file(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text("ipc: 3\nmethod: {iterations: 7}\n")
    assert find_recipe(str(path)) == path
    config = resolve("digits", ipc=None, method=None, recipe=path, settings={"seed": 4})
    assert (config.ipc, config.method.iterations, config.seed) == (3, 7, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not readable as YAML"),
        ("- 1", "a recipe is a mapping"),
        ("\x00", "not readable as YAML"),
        ("", "a recipe is a mapping"),
    ],
)
def test_a_broken_recipe_is_one_line(tmp_path: Path, text: str, message: str):
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(TeddyError, match=message) as caught:
        resolve("digits", ipc=1, method=None, recipe=path, settings=())
    assert "\n" not in str(caught.value)
