"""What is installed holds what it needs away from the checkout."""

import subprocess
import sys
import zipfile
from pathlib import Path

from teddy.recipes import shipped_recipes

ROOT = Path(__file__).parents[1]


def test_the_wheel_carries_recipes_and_template(tmp_path: Path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("teddy_distill-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"teddy/recipes/{name}.yaml" for name in shipped_recipes()} <= names
    assert {"teddy/report/page.html.j2", "teddy/card.md.j2", "teddy/py.typed"} <= names
    assert not any(name.startswith(("tests", "docs", "bench")) for name in names)
    metadata = next(name for name in names if name.endswith("METADATA"))
    text = zipfile.ZipFile(wheel).read(metadata).decode()
    assert "License-Expression: Apache-2.0" in text
    assert "torch<2.16,>=2.11" in text
