import errno
import json
from pathlib import Path

import pytest
import torch
import yaml
from rich.console import Console

from teddy.config import Config
from teddy.errors import TeddyError
from teddy.files import write_whole
from teddy.progress import POINTS_PER_STAGE, Metrics, read_metrics
from teddy.run import Run, existing_run, new_run, pick_device


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "deep" / "file"
    write_whole(path, b"first")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"second")
    assert path.read_bytes() == b"first"
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_at_the_start_leaves_nothing(
    tmp_path: Path, config: Config, quiet: Console, monkeypatch: pytest.MonkeyPatch
):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with (
        pytest.raises(TeddyError, match="no space left on the device; nothing was left behind"),
        new_run(tmp_path / "run", config, bytes_needed=0, console=quiet),
    ):
        pass
    assert not (tmp_path / "run").exists()


def test_a_disk_that_fills_up_later_keeps_what_is_finished(tmp_path: Path, config: Config, quiet: Console):
    def fill_up() -> None:
        with new_run(tmp_path / "run", config, bytes_needed=0, console=quiet) as run:
            run.write_json("pool/pool.json", {})
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(TeddyError, match="no space left on the device; what is finished is kept"):
        fill_up()
    assert (tmp_path / "run" / "pool" / "pool.json").exists()


def test_a_training_that_has_only_just_begun_is_kept_when_the_disk_is_full(
    tmp_path: Path, config: Config, quiet: Console
):
    def fill_up() -> None:
        with new_run(tmp_path / "run", config, bytes_needed=0, console=quiet) as run:
            run.write("pool/training.safetensors", b"hours of work")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(TeddyError, match="no space left on the device; what is finished is kept"):
        fill_up()
    assert (tmp_path / "run" / "pool" / "training.safetensors").read_bytes() == b"hours of work"


def test_too_little_space_is_noticed_before_anything_is_written(tmp_path: Path, config: Config, quiet: Console):
    with (
        pytest.raises(TeddyError, match=r"no space left; the run needs about 1000000000 MB"),
        new_run(tmp_path / "a" / "run", config, bytes_needed=10**15, console=quiet),
    ):
        pass
    assert not (tmp_path / "a").exists()


def test_the_same_configuration_goes_on_and_another_is_refused_with_the_difference(
    tmp_path: Path, config: Config, quiet: Console
):
    folder = tmp_path / "run"
    for _ in range(2):
        with new_run(folder, config, bytes_needed=0, console=quiet) as run:
            run.write("kept", b"x")
    other = config.model_copy(update={"seed": 7})
    with (
        pytest.raises(TeddyError, match=r"another configuration \(seed was 0, now 7\).*--overwrite"),
        new_run(folder, other, bytes_needed=0, console=quiet),
    ):
        pass
    assert (folder / "kept").exists()
    with new_run(folder, other, bytes_needed=0, overwrite=True, console=quiet):
        assert not (folder / "kept").exists()


def test_a_run_from_before_a_setting_was_there_goes_on_unless_the_setting_is_used(
    tmp_path: Path, config: Config, quiet: Console
):
    folder = tmp_path / "run"
    with new_run(folder, config, bytes_needed=0, console=quiet):
        pass
    older = yaml.safe_load((folder / "config.yaml").read_text())
    del older["engine"]["students"], older["method"]["tiles"]
    (folder / "config.yaml").write_text(yaml.safe_dump(older))
    with new_run(folder, config, bytes_needed=0, console=quiet):
        pass
    used = config.model_copy(update={"method": config.method.model_copy(update={"tiles": 2})})
    with (
        pytest.raises(TeddyError, match=r"another configuration \(method.tiles was 1, now 2\)"),
        new_run(folder, used, bytes_needed=0, console=quiet),
    ):
        pass
    (folder / "config.yaml").write_text(yaml.safe_dump(older | {"no longer": 1}))
    with pytest.raises(TeddyError, match="another configuration"), new_run(folder, config, bytes_needed=0):
        pass


def test_a_run_that_was_killed_while_its_first_file_was_written_goes_on(tmp_path: Path, config: Config, quiet: Console):
    def killed(*_: Path) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt), new_run(folder, config, bytes_needed=0, console=quiet):
            pass
    assert [path.name for path in folder.glob("*.part")] == [".config.yaml.part"]
    with new_run(folder, config, bytes_needed=0, console=quiet):
        assert (folder / "config.yaml").exists()
        assert not list(folder.glob("*.part"))


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_somebody_elses_is_never_touched(tmp_path: Path, config: Config, quiet: Console, overwrite: bool):
    (tmp_path / "thesis.tex").write_text("x")
    with (
        pytest.raises(TeddyError, match="holds files that are no run"),
        new_run(tmp_path, config, bytes_needed=0, overwrite=overwrite, console=quiet),
    ):
        pass
    with pytest.raises(TeddyError, match="is a file"), new_run(tmp_path / "thesis.tex", config, bytes_needed=0):
        pass
    assert (tmp_path / "thesis.tex").read_text() == "x"


def test_a_folder_without_a_run_cannot_be_opened(tmp_path: Path):
    with pytest.raises(TeddyError, match="not a run folder"), existing_run(tmp_path):
        pass


def test_changed_data_is_noticed(run: Run):
    run.note_source({"name": "photos", "fingerprint": "a"})
    run.note_source({"name": "photos", "fingerprint": "a"})
    with pytest.raises(TeddyError, match="the images of 'photos' have changed"):
        run.note_source({"name": "photos", "fingerprint": "b"})


def test_the_manifest_lists_what_is_there(run: Run):
    run.write("pool/a", b"abc")
    run.complete()
    manifest = json.loads((run.folder / "manifest.json").read_text())
    assert manifest["sha256"]["pool/a"] == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert set(manifest["sha256"]) == {"config.yaml", "pool/a"}
    assert manifest["versions"]["torch"] == torch.__version__.split("+")[0]


def test_tensors_come_back_as_they_went(run: Run):
    tensors = {"a": torch.randn(3, 4), "b": torch.arange(5)}
    run.write_tensors("t.safetensors", tensors)
    back = run.read_tensors("t.safetensors")
    assert all(torch.equal(back[key], tensors[key]) for key in tensors)


def test_a_stage_keeps_a_curve_and_its_time(run: Run):
    with run.stage("synthesis", "synthesis", 1000) as stage:
        for step in range(1000):
            stage.step(loss=torch.tensor(float(step)))
    run.close()
    points = read_metrics(run.folder, "synthesis")
    assert POINTS_PER_STAGE <= len(points) <= POINTS_PER_STAGE + 1
    assert all(point["loss"] == point["step"] - 1 for point in points)
    assert run.stages()["synthesis"]["seconds"] >= 0
    assert "synthesis: done in" in (run.folder / "log.txt").read_text()


def test_a_run_that_goes_on_replaces_the_points_it_makes_again(run: Run):
    for value in (1.0, 2.0):
        run.metrics.add("pool", 1, {"loss": value})
    run.metrics.close()
    assert read_metrics(run.folder, "pool") == [{"step": 1, "loss": 2.0}]


def test_a_torn_line_costs_that_line_alone(run: Run):
    run.metrics.add("pool", 1, {"loss": 1.0})
    run.close()
    path = run.folder / "metrics.jsonl"
    path.write_text(path.read_text() + '{"stage": "pool", "st')
    metrics = Metrics(run.folder)
    metrics.add("pool", 2, {"loss": 2.0})
    metrics.close()
    assert [point["step"] for point in read_metrics(run.folder, "pool")] == [1, 2]


def test_tensorboard_gets_the_same_numbers(run: Run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run.metrics.add("pool", 3, {"loss": 0.5})
    run.close()
    events = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("pool/loss")] == [(3, 0.5)]


def test_progress_is_plain_lines_without_a_terminal(tmp_path: Path, config: Config):
    with (tmp_path / "shown").open("w") as file:
        console = Console(file=file, force_terminal=False)
        with (
            new_run(tmp_path / "run", config, bytes_needed=0, console=console) as run,
            run.stage("x", "work", 2) as stage,
        ):
            stage.step()
    lines = (tmp_path / "shown").read_text().splitlines()
    assert lines[0] == "work: 2 steps"
    assert lines[1].startswith("work: done in")


def test_progress_is_a_bar_with_time_left_on_a_terminal(tmp_path: Path, config: Config):
    with (tmp_path / "shown").open("w") as file:
        console = Console(file=file, force_terminal=True, width=120)
        with (
            new_run(tmp_path / "run", config, bytes_needed=0, console=console) as run,
            run.stage("x", "work", 2) as stage,
        ):
            stage.step()
            stage.step()
    shown = (tmp_path / "shown").read_text()
    assert "2/2" in shown
    assert "left" in shown


def test_the_device_is_checked():
    assert pick_device("cpu").type == "cpu"
    if not torch.cuda.is_available():
        with pytest.raises(TeddyError, match="device 'cuda': PyTorch finds none"):
            pick_device("cuda")


@pytest.mark.parametrize("content", [b"ipc: [1,", b"\xff\xfe", b"ipc: 1"])
def test_a_damaged_configuration_is_named(content: bytes, tmp_path: Path, config: Config):
    with new_run(tmp_path / "run", config, bytes_needed=0):
        pass
    (tmp_path / "run" / "config.yaml").write_bytes(content)
    with (
        pytest.raises(TeddyError, match=r"config\.yaml is damaged|another configuration"),
        new_run(tmp_path / "run", config, bytes_needed=0),
    ):
        pass
