"""The commands: parse, call, show."""

import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from teddy import distributed
from teddy.errors import TeddyError, unknown
from teddy.stopping import Stopped, stoppable
from teddy.version import __version__

EXAMPLES = """
Examples:

  teddy distill digits --ipc 1 --out runs/digits

  teddy evaluate runs/digits --arch convnet --seeds 5

  teddy list recipes
"""
app = typer.Typer(
    help="Distil a large image data set into a small synthetic one on which networks train nearly as well.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

# Options that several commands have.
Ipc = Annotated[int | None, typer.Option(help="Images per class.")]
MethodName = Annotated[str | None, typer.Option(help="See 'teddy list methods'.  [default: teddy]")]
Recipe = Annotated[str | None, typer.Option(help="A shipped recipe by name, or a YAML file.")]
PoolFolder = Annotated[Path | None, typer.Option(help="A pool of teachers, or a run, whose teachers are used.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY.PATH=VALUE", help="Change a setting; may be repeated.")
]


def main() -> None:
    """Run a command; a user's mistake is one line and exit code 2."""
    threading.excepthook = _from_a_thread
    try:
        with stoppable(), distributed.silenced():
            sys.exit(app(standalone_mode=False))
    except TeddyError as error:
        _fail(str(error), error.exit_code)
    except Stopped as stopped:
        _fail("stopped; the same command goes on where it was", stopped.exit_code)
    except Exception as error:
        # Typer's own errors: it carries a copy of click whose place differs between versions.
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        _fail(message[:1].lower() + message[1:].rstrip(".") + "; see --help", 2)


def _from_a_thread(told: threading.ExceptHookArgs) -> None:
    # TensorBoard writes from a thread of its own: that its disk is full is said once, where our own writing fails.
    if not isinstance(told.exc_value, OSError):
        threading.__excepthook__(told)


def _fail(message: str, code: int) -> None:
    who = distributed.speaker(code)
    if who is not None:
        Console(stderr=True).print(
            f"error: {who}{' '.join(message.split())}", style="red", markup=False, highlight=False, soft_wrap=True
        )
    sys.exit(code)


def _show_version(wanted: bool) -> None:
    if wanted:
        Console().print(f"teddy {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    del version


@app.command(
    epilog="""
Examples:

  teddy distill digits --ipc 1 --out runs/digits

  teddy distill photos/ --ipc 10 --out runs/photos --set data.image_size=64 --set method.iterations=400

  teddy distill --recipe runs/digits/config.yaml --out runs/again
"""
)
def distill(
    source: Annotated[
        str | None, typer.Argument(help="A folder of images, or a bundled source; see 'teddy list sources'.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The run folder. One that holds this very run is gone on with.")] = ...,  # type: ignore[assignment]
    ipc: Ipc = None,
    method: MethodName = None,
    recipe: Recipe = None,
    pool: PoolFolder = None,
    settings: Changes = None,
    skip_bad: Annotated[
        int | None, typer.Option(min=0, help="Go on without unreadable images, so many at most.  [default: 0]")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start over in a folder that holds another run.")
    ] = False,
) -> None:
    """Distil SOURCE into N synthetic images per class, and measure what they are worth."""
    from teddy import pipeline

    changes = [*(settings or ()), *([f"data.skip_bad={skip_bad}"] if skip_bad is not None else ())]
    outcome = pipeline.distill(
        source, ipc=ipc, out=out, method=method, recipe=recipe, pool=pool, settings=changes, overwrite=overwrite
    )
    _show(outcome)


@app.command(epilog="\nExample:\n\n  teddy estimate photos/ --ipc 10\n")
def estimate(
    source: Annotated[str | None, typer.Argument(help="Whatever 'teddy distill' takes.")] = None,
    ipc: Ipc = None,
    method: MethodName = None,
    recipe: Recipe = None,
    pool: PoolFolder = None,
    settings: Changes = None,
) -> None:
    """Say what 'teddy distill' with the same arguments would take: time, memory, disk; from a few steps."""
    from teddy import estimation

    stages = estimation.estimate(source, ipc=ipc, method=method, recipe=recipe, pool=pool, settings=settings or ())
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("stage", "time", "memory", "disk"):
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    found = []
    for stage in stages:
        Console(stderr=True).print(f"{stage.stage}: {_duration(stage.seconds)}", highlight=False)
        table.add_row(stage.stage, _duration(stage.seconds), _size(stage.memory), _size(stage.disk))
        found.append(stage)
    table.add_row(
        "in all",
        _duration(sum(stage.seconds for stage in found)),
        _size(max(stage.memory for stage in found)),
        _size(sum(stage.disk for stage in found)),
    )
    Console().print(table, highlight=False)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _size(number: int) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.0f} MB"


@app.command(
    epilog="""
Examples:

  teddy pool digits --out pools/digits

  teddy pool photos/ --network resnet18 --weights trained.safetensors --out pools/photos

  teddy pool --show pools/photos --student runs/photos
"""
)
def pool(
    source: Annotated[str | None, typer.Argument(help="Whatever 'teddy distill' takes.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to make it in, or to go on in.")] = None,
    network: Annotated[str | None, typer.Option(help="The base network. See 'teddy list models'.")] = None,
    weights: Annotated[Path | None, typer.Option(help="The base's weights, safetensors or .pth.")] = None,
    generation: Annotated[str | None, typer.Option(metavar="auto|prior|post", help="  [default: auto]")] = None,
    recipe: Recipe = None,
    settings: Changes = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start over in a folder that holds another pool.")
    ] = False,
    show: Annotated[Path | None, typer.Option(help="Show the members of the pool in this folder instead.")] = None,
    student: Annotated[
        Path | None, typer.Option(help="With --show: a run, to a student of which each member's distance is measured.")
    ] = None,
) -> None:
    """Make a pool of weak teachers from one base network, for --pool; or --show one."""
    from teddy import pooling

    if show is None:
        if out is None:
            raise TeddyError("--out is needed: the folder to make the pool in (or --show POOL)")
        show = pooling.make_pool(
            source,
            out=out,
            network=network,
            weights=weights,
            generation=generation,
            recipe=recipe,
            settings=settings or (),
            overwrite=overwrite,
        )
    elif source is not None or out is not None:
        raise TeddyError("--show looks at a pool that is there; leave out SOURCE and --out")
    _show_members(pooling.show_pool(show, student=student), show)


@app.command(
    epilog="""
Examples:

  teddy evaluate runs/digits --seeds 5

  teddy evaluate runs/digits --arch resnet18 --arch convnet
"""
)
def evaluate(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    arch: Annotated[
        list[str] | None, typer.Option(help="A student network; may be repeated. See 'teddy list models'.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Students per row.")] = None,
) -> None:
    """Train further students on a run's distilled set and on its controls."""
    from teddy import pipeline

    _show(pipeline.evaluate(run, networks=arch or (), seeds=seeds))


@app.command(epilog="\nExample:\n\n  teddy report runs/digits\n")
def report(run: Annotated[Path, typer.Argument(help="The folder of a run.")]) -> None:
    """Write a run's report.html anew."""
    from teddy import pipeline

    Console().print(f"report: {pipeline.write_report(run)}", highlight=False, soft_wrap=True)


@app.command(epilog="\nExample:\n\n  teddy inspect photos/ --sheet photos.png\n")
def inspect(
    source: Annotated[str, typer.Argument(help="Whatever 'teddy distill' takes.")],
    sheet: Annotated[
        Path | None, typer.Option(help="Where to write the contact sheet.  [default: NAME-sheet.png, here]")
    ] = None,
    image_size: Annotated[int | None, typer.Option(min=8, help="Side in pixels.")] = None,
    class_order: Annotated[Path | None, typer.Option(help="A file with a class name a line.")] = None,
) -> None:
    """Say what SOURCE holds: classes, counts, sizes, unreadable files, memory, loader; with a contact sheet."""
    from teddy import inspection

    where = sheet or Path(f"{Path(source).resolve().name}-sheet.png")
    console = Console()
    seen = inspection.inspect(
        source, image_size=image_size, class_order=class_order, sheet=where, console=Console(stderr=True)
    )
    table = Table(box=None, show_header=False, pad_edge=False)
    for heading, text in seen.lines():
        table.add_row(heading, text)
    console.print(table, highlight=False)
    console.print(f"contact sheet: {where}", highlight=False, soft_wrap=True)


@app.command(
    epilog="""
Examples:

  teddy export runs/digits --format imagefolder --out digits-small

  teddy export runs/digits --format huggingface --out digits-hub
"""
)
def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or of a distilled set.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    form: Annotated[str, typer.Option("--format", metavar="imagefolder|huggingface|tensors")] = "imagefolder",
) -> None:
    """Write a distilled set for other tools, with a data set card."""
    from teddy import exporting

    where = exporting.export(run, form, out)
    Console().print(f"exported: {where}", highlight=False, soft_wrap=True)


@app.command(epilog="\nExample:\n\n  teddy verify runs/digits\n")
def verify(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, or of a distilled set.")],
) -> None:
    """Find changed, missing and extra files, and classes in another order than the teachers'."""
    from teddy import verification

    findings = verification.verify(folder)
    for finding in findings:
        Console().print(finding, highlight=False, soft_wrap=True, markup=False)
    if findings:
        raise TeddyError(f"{folder}: {len(findings)} things are not as they were made; distil or copy it again")
    Console().print(f"{folder}: as it was made", highlight=False, soft_wrap=True)


@app.command("list", epilog="\nExamples:\n\n  teddy list methods\n\n  teddy list models\n")
def list_known(what: Annotated[str, typer.Argument(metavar="methods|models|recipes|sources")]) -> None:
    """List what Teddy knows by name."""
    listings = {"methods": _methods, "models": _models, "recipes": _recipes, "sources": _sources}
    if what not in listings:
        raise unknown("listing", what, listings)
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, summary in listings[what]().items():
        table.add_row(name, summary)
    Console().print(table, highlight=False)


def _methods() -> dict[str, str]:
    from teddy.methods import METHODS

    return {name: method.summary for name, method in METHODS.items()}


def _models() -> dict[str, str]:
    from teddy.models.zoo import known_networks

    return known_networks()


def _recipes() -> dict[str, str]:
    from teddy.recipes import headline, shipped_recipes

    return {name: headline(path) for name, path in shipped_recipes().items()}


def _sources() -> dict[str, str]:
    from teddy.data.source import KINDS

    return {name: kind.summary for name, kind in KINDS.items()}


def _show_members(members: Any, folder: Path) -> None:
    console = Console()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    pruned = members[0].widths is not None
    made = ["widths", "epochs", "rate"] if pruned else ["epoch"]
    distance = ["KL to the student"] if members[0].distance is not None else []
    for heading in ["teacher", *made, "accuracy, %", "MMACs", "params, M", "MB", *distance]:
        table.add_column(heading, justify="left" if heading == "teacher" else "right")
    for member in members:
        rate = f"{member.learning_rate:.2g}" if member.learning_rate else ""
        made = [member.widths, f"{member.epochs:.2f}", rate] if pruned else [f"{member.epochs:g}"]
        cost = [f"{member.macs / 1e6:.4g}", f"{member.parameters / 1e6:.2f}", f"{member.bytes / 1e6:.1f}"]
        distance = [f"{member.distance:.3f}"] if member.distance is not None else []
        table.add_row(member.name, *made, f"{member.accuracy:.1f}", *cost, *distance)
    console.print(table, highlight=False)
    console.print(f"\npool: {folder}", highlight=False, soft_wrap=True)


def _show(outcome: Any) -> None:
    from teddy.report.table import result_lines, time_saved

    console = Console()
    for network in outcome.results:
        table = Table(
            title=f"students: {network}", title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0)
        )
        for heading in ("trained on", "accuracy, %", "n", "IOR"):
            table.add_column(heading, justify="left" if heading == "trained on" else "right")
        for line in result_lines(outcome.results, network):
            table.add_row(line.row, line.accuracy, str(line.n), line.ior)
        console.print()
        console.print(table, highlight=False)
        console.print("", *time_saved(outcome.results, network), sep="\n", highlight=False, soft_wrap=True)
    console.print(
        f"\nimages: {outcome.folder / 'distilled'}\nreport: {outcome.report}", highlight=False, soft_wrap=True
    )
