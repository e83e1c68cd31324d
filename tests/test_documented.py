"""What the documentation tells people to type is understood, and asks for settings that there are."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from teddy import pipeline, pooling
from teddy.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)
INLINE = re.compile(r"`(teddy (?:distill|pool) [^`]*--out [^`]+)`")
TELL = f"teddy() {{ {sys.executable} -c 'import json, sys; print(json.dumps(sys.argv[1:]))' \"$@\"; }}\n"


def typed(page: Path) -> list[list[str]]:
    """The arguments of every `teddy distill` and `teddy pool` on a page, as a shell understands them."""
    text = page.read_text(encoding="utf-8")
    found = []
    for block in (*BLOCK.findall(text), *INLINE.findall(text)):
        # Only what sets variables or calls Teddy itself: other commands are not ours to run.
        lines = [
            line for line in block.replace("\\\n", "").splitlines() if re.match(r"teddy (distill|pool) |[A-Z]=", line)
        ]
        told = subprocess.run(["bash", "-c", TELL + "\n".join(lines)], capture_output=True, text=True, check=True)
        found += [_without_pool(json.loads(line)) for line in told.stdout.splitlines()]
    return [
        given for given in found if not any(part.endswith(".yaml") for part in given)
    ]  # a run's own, to be made first


def _without_pool(given: list[str]) -> list[str]:
    """As if the teachers were to be made: the pool's folder is not here."""
    return [part for at, part in enumerate(given) if "--pool" not in given[max(at - 1, 0) : at + 1]]


COMMANDS = [(page.name, given) for page in PAGES for given in typed(page)] if shutil.which("bash") else []


@pytest.mark.skipif(not COMMANDS, reason="no bash to read them with")
def test_there_are_commands():
    assert {"README.md", "RESULTS.md", "POOLS.md"} <= {page for page, _ in COMMANDS}


class UnderstoodError(Exception):
    """What is asked for is a valid configuration; the data would be opened next."""


@pytest.mark.parametrize(("page", "given"), COMMANDS, ids=[f"{page}: {' '.join(given)}" for page, given in COMMANDS])
def test_a_documented_command_is_understood(page: str, given: list[str], monkeypatch: pytest.MonkeyPatch):
    del page

    def understood(*_: object, **__: object) -> None:
        raise UnderstoodError

    monkeypatch.setattr(pipeline, "open_data", understood)
    monkeypatch.setattr(pooling, "open_data", understood)
    monkeypatch.setattr(pooling, "show_pool", understood)
    with pytest.raises(UnderstoodError):
        CliRunner().invoke(app, given, catch_exceptions=False, standalone_mode=False)
