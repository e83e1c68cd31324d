"""A tmpfs that is soon full."""

import subprocess
from contextlib import suppress
from pathlib import Path


def mount(place: Path, *options: str) -> None:
    """The tmpfs, or a change of it."""
    subprocess.run(["mount", *options, place], check=True, capture_output=True)


def unmount(place: Path) -> None:
    subprocess.run(["umount", place], check=True, capture_output=True)


def fill(place: Path) -> None:
    """Nothing more can be written."""
    with suppress(OSError), (place / "ballast").open("ab", buffering=0) as file:
        while file.write(bytes(4096)) == 4096:
            pass


def permitted(place: Path) -> list[str] | None:
    """Before a command that mounts something; nothing where that is not permitted."""
    trial = ["sh", "-c", f"mount -t tmpfs tmpfs '{place}' && umount '{place}'"]
    for prefix in (["unshare", "-rm"], []):  # in a namespace of its own nothing stays mounted
        with suppress(OSError):
            if subprocess.run([*prefix, *trial], capture_output=True, check=False).returncode == 0:
                return prefix
    return None
