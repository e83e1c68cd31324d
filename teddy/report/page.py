"""`report.html`: one file that holds everything it shows."""

from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from teddy.config import Config
from teddy.distilled import FOLDER, encode_png, read_distilled
from teddy.errors import TeddyError
from teddy.evaluation import RESULTS, Results
from teddy.pool.store import read_index
from teddy.progress import read_metrics
from teddy.report import gallery, plots
from teddy.report.table import result_lines, time_saved
from teddy.run import CONFIG, Run, versions

REPORT = "report.html"
GALLERY = "gallery.png"


def make_page(run: Run, config: Config) -> Path:
    """Write the page and the contact sheet of a run that has been evaluated."""
    if not run.has(RESULTS):
        raise TeddyError(f"{run.folder}: has not been evaluated yet; 'teddy evaluate {run.folder}' goes on with it")
    results: Results = run.read_json(RESULTS)
    distilled = read_distilled(run.folder / FOLDER)
    pixels, labels = distilled.images.pixels, distilled.images.labels
    synthesis = read_metrics(run.folder, "synthesis")
    template = (resources.files("teddy.report") / "page.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    html = environment.from_string(template).render(
        source=run.read_json("source.json"),
        config=config,
        results=[
            {
                "network": network,
                "lines": result_lines(results, network),
                "saved": time_saved(results, network),
                "bars": plots.accuracy_bars(results, network),
                "curves": plots.student_curves(results, network),
            }
            for network in results
        ],
        strips=gallery.strips(pixels, labels, distilled.classes),
        num_classes=len(distilled.classes),
        num_images=len(distilled),
        losses=plots.loss_curves(synthesis) if synthesis else "",
        pool=plots.pool_accuracies(read_index(run.folder)["members"]),
        stages=run.stages(),
        resolved=(run.folder / CONFIG).read_text(encoding="utf-8"),
        versions=versions(),
    )
    run.write(GALLERY, encode_png(gallery.contact_sheet(pixels, labels, len(distilled.classes))))
    run.write(REPORT, html.encode())
    return run.folder / REPORT
