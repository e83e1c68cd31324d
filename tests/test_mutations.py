"""Sets from strangers: whatever is in the files, loading gives a sound set or an error of ours, and does nothing else.

TEDDY_MUTATIONS says how many mutations to try; each is drawn from its own number, which a failure names.
"""

import json
import logging
import os
import random
import shutil
import signal
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from test_distilled import STORED, make_set

from teddy.distilled import DESCRIPTION, LABELS, read_distilled, sha256
from teddy.errors import TeddyError

MUTATIONS = int(os.environ.get("TEDDY_MUTATIONS", "500"))
SECONDS = 10
SEALED = 0.85  # share of mutations whose author has mended the checksums
HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 2**31, 2**63, 2**64, -(2**63), 10**400, 0.5, -0.0, 1e308, 1e-320, float("nan"),
    float("inf"), -float("inf"), "", "x", "../../x", "../outside/spare.png", "/etc/passwd", "/dev/zero",
    "images", "images/cat",
    ".", "..", "a/../../b.png", "C:\\x.png", "C:x.png", "\\\\server\\x.png", "images\\cat\\00000.png", "x\0.png",
    "x\n.png", "file:///etc/passwd", "http://localhost/x.png", "~/x.png", "$HOME/x.png", "%00", "A" * 10_000,
    "é", "e\u0301", "\u202egnp.x", "\ufeff", "\u2028", "𝕏" * 300, "ＩＭＡＧＥＳ/cat/00000.png", DESCRIPTION, LABELS,
    "0" * 64, [], {}, [[]], [0], [None] * 1000, ["x"] * 1000, {"x": 0}, {"": {"": {}}}, {"__class__": "os.system"},
    {"__proto__": {}}, "F64", "I8", "F32", "BOOL", [6], [6, 3], [0, 0], [2**62, 4], [3, 6], [0, 48], [48, 120],
    [120, 48],
]  # fmt: skip
WRITING = {
    "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.truncate", "os.chmod", "os.chown",
    "os.utime", "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect",
    "pickle.find_class", "marshal.loads", "ctypes.dlopen", "tempfile.mkstemp", "tempfile.mkdtemp",
}  # fmt: skip


def mutate_bytes(draw: random.Random, folder: Path) -> None:
    path = draw.choice(files_of(folder))
    content = bytearray(path.read_bytes())
    for _ in range(draw.choice([1, 1, 2, 5, 50])):
        place = draw.randrange(len(content) + 1)
        length = draw.choice([1, 1, 2, 4, 16, 100])
        change = draw.choice(["flip", "set", "insert", "delete", "copy", "truncate"])
        if change == "flip" and place < len(content):
            content[place] ^= 1 << draw.randrange(8)
        elif change == "set":
            content[place : place + length] = bytes([draw.choice([0, 255, 127, 128])]) * length
        elif change == "insert":
            content[place:place] = draw.randbytes(length)
        elif change == "delete":
            del content[place : place + length]
        elif change == "copy":
            content[place:place] = content[draw.randrange(len(content) + 1) :][:length]
        elif change == "truncate" and draw.random() < 0.2:
            del content[place:]
    path.write_bytes(content)


def swap_files(draw: random.Random, folder: Path) -> None:
    one, two = draw.sample(files_of(folder), 2)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)


def lie_in_json(draw: random.Random, folder: Path) -> None:
    path = folder / DESCRIPTION
    tree = json.loads(path.read_text(encoding="utf-8"))
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        lie(draw, tree)
    text = json.dumps(tree)
    change = draw.random()
    if change < 0.05:
        text = text.replace('"config": {', '"config": {"deep": ' + "[" * 100_000 + "]" * 100_000 + ",", 1)
    elif change < 0.1:
        text = text.replace('"ipc": ', '"ipc": ' + "9" * draw.choice([20, 5_000, 1_000_000]), 1)
    elif change < 0.15:
        text = text.replace('"source": "', '"source": "' + draw.choice(["\\ud800", "\\u0000", "\\x", "\x07", "\\"]), 1)
    elif change < 0.2:
        text = text[:-1] + draw.choice([', "format": 1}', ', "images": []}', "} {}", ",}", ', "format": 2}'])
    path.write_bytes(text.encode(draw.choice(["utf-8"] * 20 + ["utf-16", "utf-8-sig", "cp500"]), "replace"))


def lie(draw: random.Random, tree: Any) -> None:
    """Replace, remove, rename or repeat something at a random place of a JSON tree."""
    while True:
        places = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        if not places:
            return
        place = draw.choice(places)
        if isinstance(tree[place], dict | list) and tree[place] and draw.random() < 0.85:
            tree = tree[place]
            continue
        change = draw.random()
        if change < 0.75:
            tree[place] = draw.choice(HOSTILE)
        elif change < 0.85:
            del tree[place]
        elif isinstance(tree, dict):
            tree[str(draw.choice(HOSTILE))] = tree.pop(place)
        else:
            tree.insert(draw.randrange(len(tree) + 1), tree[place])
        return


def lie_in_png(draw: random.Random, folder: Path) -> None:
    path = draw.choice(sorted(folder.rglob("*.png")))
    chunks = chunks_of(path.read_bytes())
    giant = draw.choice([0, 1, 7, 9, 4096, 30_000, 2**31 - 1, 2**32 - 1])
    kind = draw.randrange(9)
    if kind == 0:  # a header that claims another size
        chunks[0] = (b"IHDR", struct.pack(">II", giant, draw.choice([giant, 8])) + chunks[0][1][8:])
    elif kind == 1:  # a true header, and another one after it
        chunks.insert(1, (b"IHDR", struct.pack(">II", giant, giant) + chunks[0][1][8:]))
    elif kind == 2:  # other depths, colour types, compressions, filters, interlacing
        fields = bytearray(chunks[0][1])
        fields[draw.randrange(8, 13)] = draw.choice([0, 1, 2, 3, 4, 6, 8, 16, 255])
        chunks[0] = (b"IHDR", bytes(fields))
    elif kind == 3:  # much more data than the header says, or much less
        chunks[1] = (b"IDAT", zlib.compress(bytes(draw.choice([0, 1, 10**3, 10**7]))))
    elif kind == 4:  # texts and profiles that unpack to a lot
        name = draw.choice([b"zTXt", b"iTXt", b"iCCP", b"tEXt", b"eXIf"])
        packed = zlib.compress(bytes(draw.choice([10, 10**6, 10**7])))
        head = b"x\0\1\0\0\0" if name == b"iTXt" else b"x\0\0"
        chunks[1:1] = [(name, head + packed)] * draw.choice([1, 2, 20])
    elif kind == 5:  # animations, palettes, transparency, things unknown
        names = [
            b"acTL",
            b"fcTL",
            b"fdAT",
            b"PLTE",
            b"tRNS",
            b"gAMA",
            b"cHRM",
            b"sRGB",
            b"pHYs",
            b"QQQQ",
            b"qqqq",
            b"IEND",
        ]
        content = draw.randbytes(draw.choice([0, 1, 4, 8, 26, 256, 768]))
        chunks.insert(draw.randrange(1, len(chunks) + 1), (draw.choice(names), content))
    elif kind == 6:  # filters that do not exist, pixels at random
        chunks[1] = (b"IDAT", zlib.compress(draw.randbytes(draw.choice([199, 200, 201]))))
    elif kind == 7:  # another format under the name
        buffer = BytesIO()
        form = draw.choice(["GIF", "JPEG", "BMP", "TIFF", "PPM", "TGA", "ICO", "PDF", "EPS"])
        Image.new("RGB", (8, 8)).save(buffer, form)
        path.write_bytes(buffer.getvalue())
        return
    else:
        draw.shuffle(chunks)
    mended = draw.random() < 0.9
    path.write_bytes(png_of(chunks, mended))


def chunks_of(png: bytes) -> list[tuple[bytes, bytes]]:
    chunks, place = [], 8
    while place < len(png):
        (length,) = struct.unpack_from(">I", png, place)
        chunks.append((png[place + 4 : place + 8], png[place + 8 : place + 8 + length]))
        place += 12 + length
    return chunks


def png_of(chunks: list[tuple[bytes, bytes]], mended: bool) -> bytes:
    parts = [b"\x89PNG\r\n\x1a\n"]
    for name, content in chunks:
        check = zlib.crc32(name + content) if mended else 0
        parts.append(struct.pack(">I", len(content)) + name + content + struct.pack(">I", check))
    return b"".join(parts)


def lie_in_safetensors(draw: random.Random, folder: Path) -> None:
    path = folder / draw.choice([LABELS, STORED])
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), bytearray(content[8 + length :])
    change = draw.random()
    if change < 0.5:
        lie(draw, header)
    elif change < 0.7:
        number = draw.choice([float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 0.0])
        struct.pack_into("<f", data, draw.randrange(48, len(data) - 3, 4), number)
    elif change < 0.8:
        struct.pack_into("<q", data, draw.randrange(0, 48, 8), draw.choice([-1, 3, 2**62, 0, 1]))
    elif change < 0.9:
        data = data[: draw.randrange(len(data))] if draw.random() < 0.5 else data + draw.randbytes(16)
    text = json.dumps(header).encode()
    told = len(text) if draw.random() < 0.8 else draw.choice([0, 1, len(text) - 1, 2**20, 2**40, 2**63, 2**64 - 1])
    path.write_bytes(told.to_bytes(8, "little") + text + data)


def change_kind(draw: random.Random, folder: Path) -> None:
    """Something else in a file's place: a link, a pipe, a folder, nothing."""
    path = draw.choice([*files_of(folder), folder / "images", folder / "images" / "cat"])
    spare = folder.parent / "outside" / "spare"
    if path.is_dir():
        shutil.move(path, folder / "moved")
    elif draw.random() < 0.5:
        path.rename(folder / "moved")
    else:
        path.unlink()
    kind = draw.randrange(8)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.mkdir()
    elif kind == 2:
        path.touch()
    elif kind == 3:
        path.symlink_to(
            draw.choice([spare, "/etc/passwd", "/dev/zero", "/dev/stdin", "/proc/self/mem", "/", "../outside"])
        )
    elif kind == 4:
        path.symlink_to(draw.choice([path, "moved", folder / "moved", "../moved", "../../moved", "nowhere", LABELS]))
    elif kind == 5:
        with path.open("wb") as file:
            file.truncate(2**34)  # sparse: it takes no space
    elif kind == 6:
        os.mkfifo(folder / "pipe")
        path.symlink_to(folder / "pipe")


MUTATORS: dict[str, Callable[[random.Random, Path], None]] = {
    "bytes": mutate_bytes,
    "swap": swap_files,
    "json": lie_in_json,
    "png": lie_in_png,
    "safetensors": lie_in_safetensors,
    "kind": change_kind,
}


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def is_small(path: Path) -> bool:
    return path.is_file() and path.stat().st_size < 2**24


def seal(folder: Path) -> None:
    """Mend the checksums of whatever can be mended."""
    path = folder / DESCRIPTION
    try:
        tree = json.loads(path.read_text(encoding="utf-8")) if is_small(path) else None
        for file in tree["images"] + tree["other_files"]:
            member = folder / file["name"]
            if is_small(member):
                file["sha256"] = sha256(member.read_bytes())
        path.write_text(json.dumps(tree), encoding="utf-8")
    except (ValueError, TypeError, KeyError, OSError, RecursionError, AttributeError):
        return  # what is so broken that its author could not seal it either


class HangError(BaseException):
    """Not an Exception, so that nothing but the test catches it."""


@contextmanager
def time_limit() -> Iterator[None]:
    def hang(*_: object) -> None:
        raise HangError(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, hang)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Watch:
    """What the interpreter says it does to files, processes and the network while the watch is on."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []
        self.read: list[Path] = []
        sys.addaudithook(self.note)

    def note(self, event: str, details: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            flags = details[2] if isinstance(details[2], int) else 0
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
                self.seen.append(f"{event} {details}")
            elif isinstance(details[0], str):
                self.read.append(Path(details[0]))
        elif event in WRITING:
            self.seen.append(f"{event} {details}")


def tree_of(root: Path) -> dict[str, tuple[int, ...]]:
    state = {}
    for path in root.rglob("*"):
        found = path.lstat()
        state[str(path)] = (found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns)
    return state


def check_sound(folder: Path) -> None:
    distilled = read_distilled(folder)
    num_images, num_classes = len(distilled), len(distilled.classes)
    assert distilled.images.pixels.dtype == torch.uint8
    assert distilled.logits.shape == (num_images, num_classes)
    assert distilled.labels.shape == (num_images,)
    assert 0 <= distilled.labels.min() <= distilled.labels.max() < num_classes
    for image, label in (distilled[row] for row in range(num_images)):
        assert image.shape == distilled.images.pixels.shape[1:]
        assert image.isfinite().all()
        torch.testing.assert_close(label.sum(), torch.tensor(1.0))
    for images, labels in (batch for epoch in range(3) for batch in distilled.training_batches(4, epoch)):
        assert images.isfinite().all()
        torch.testing.assert_close(labels.sum(1), torch.ones(len(images)))


def attempt(folder: Path) -> str | None:
    """None for a sound set, else what our error says; anything else is raised."""
    try:
        with time_limit():
            check_sound(folder)
    except TeddyError as error:
        return str(error)
    return None


def test_no_mutation_gets_through(tmp_path: Path):
    pattern = make_set(tmp_path / "pattern")
    files = {path.relative_to(pattern).as_posix(): path.read_bytes() for path in files_of(pattern)}
    arena = tmp_path / "arena"
    check_sound(pattern)  # whatever is imported on the first use is imported now
    watch, outcomes = Watch(), Counter[str]()
    kinds = list(MUTATORS)
    for number in range(MUTATIONS):
        draw = random.Random(number)
        folder = arena / "set"
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        (arena / "outside").mkdir()
        for spare in ("spare", "spare.png"):
            (arena / "outside" / spare).write_bytes(files["images/cat/00000.png"])
        kind = kinds[number % len(kinds)]
        MUTATORS[kind](draw, folder)
        if draw.random() < SEALED:
            seal(folder)
        before = tree_of(tmp_path)
        watch.read.clear()
        watch.on = True
        try:
            message = attempt(folder)
        except BaseException as error:
            raise AssertionError(f"mutation {number} ({kind}): {error!r}") from error
        finally:
            watch.on = False
        assert watch.seen == [], f"mutation {number} ({kind})"
        strays = [path for path in watch.read if not path.resolve().is_relative_to(folder.resolve())]
        assert strays == [], f"mutation {number} ({kind}): read outside of the set"
        assert tree_of(tmp_path) == before, f"mutation {number} ({kind}): something was written"
        if message is not None:
            assert str(folder) in message, f"mutation {number} ({kind}): names no file: {message}"
            assert len(message.splitlines()) == 1, f"mutation {number} ({kind}): {message!r}"
            assert len(message) < 1000, f"mutation {number} ({kind}): {message!r}"
        outcomes[f"{kind}: {'sound set' if message is None else 'error of ours'}"] += 1
        shutil.rmtree(arena)
    logging.getLogger(__name__).info("%s", dict(sorted(outcomes.items())))
    if MUTATIONS >= 100:
        assert {outcome.split(":")[0] for outcome in outcomes} == set(MUTATORS)
        assert {outcome.split(": ")[1] for outcome in outcomes} == {"sound set", "error of ours"}
