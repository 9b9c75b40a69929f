"""`seeupo report`, and the report that training writes."""

import shutil

import pytest
from click.testing import CliRunner

import seeupo
from report.decoding import decoded_page
from seeupo.cli import main
from seeupo.report import write
from training.small_runs import small


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    seeupo.train(small(run={"iterations": 2}), run_dir=run_dir)
    return run_dir


def report(*arguments):
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


def test_training_writes_a_report(run):
    found = decoded_page(run / "report.html")
    assert found.overview["runs"][0]["name"] == "run"
    assert found.overview["runs"][0]["trajectories"]["total"] == 2 * 16 + 2 * 4 * 2


def test_command_reproduces_the_report_of_training(run, tmp_path):
    before = (run / "report.html").read_bytes()
    done = report(run)
    assert done.exit_code == 0, done.output
    assert "48 of 48 trajectories" in done.output
    assert (run / "report.html").read_bytes() == before
    assert report(run, "--out", tmp_path / "elsewhere" / "page.html").exit_code == 0
    assert (tmp_path / "elsewhere" / "page.html").read_bytes() == before


def test_several_runs_share_a_page(run, tmp_path):
    shutil.copytree(run, tmp_path / "other")
    done = report(run, tmp_path / "other", "--out", tmp_path / "both.html")
    assert done.exit_code == 0, done.output
    assert f"report  {tmp_path / 'both.html'}  (open it in a browser)" in done.output
    assert [line.partition(": ")[0] for line in done.output.splitlines()[:2]] == [str(run), str(tmp_path / "other")]
    assert [each["name"] for each in decoded_page(tmp_path / "both.html").overview["runs"]] == ["run", "other"]


def test_report_of_a_killed_run_names_what_is_missing(run, tmp_path):
    shutil.copytree(run, tmp_path / "killed")
    (tmp_path / "killed" / "summary.json").unlink()
    shutil.rmtree(tmp_path / "killed" / "policy")
    with (tmp_path / "killed" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "itera')
    file = tmp_path / "killed" / "trajectories" / "00002.jsonl.gz"
    file.write_bytes(file.read_bytes()[:-40])
    done = report(tmp_path / "killed")
    assert done.exit_code == 0, done.output
    assert "summary.json" in done.output


def test_other_directories_are_refused_in_one_line(tmp_path):
    done = report(tmp_path)
    assert done.exit_code == 1
    assert done.output.startswith("Error: ")
    assert len(done.output.splitlines()) == 1
    assert report(tmp_path / "nowhere").exit_code == 1


def test_a_report_that_cannot_be_written_does_not_fail_a_run(run, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "write_page", full)
    notes = []

    class Notes(seeupo.Callback):
        def on_note(self, text):
            notes.append(text)

    assert seeupo.resume(run, callback=Notes(), progress=False).summary["iterations"] == 2
    assert any("No space left on device" in note for note in notes)
