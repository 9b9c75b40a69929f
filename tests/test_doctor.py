import shutil
import sys
import threading

import pytest
from click.testing import CliRunner

from seeupo import doctor as checks
from seeupo.cli import main
from seeupo.doctor import Check, disk, optional_package, sampler_gap, sandbox, self_test, two_rank_gap


def test_log_probs_of_sampler_and_trainer_agree():
    assert sampler_gap() < 1e-4


@pytest.mark.cluster
def test_two_ranks_train_like_one_process():
    assert two_rank_gap() < 1e-4


def test_a_package_that_is_not_installed_is_skipped_with_the_command_to_install_it(monkeypatch):
    monkeypatch.setitem(checks.EXTRAS, "no_such_package", ("lora", "tests"))
    check = optional_package("no_such_package")
    assert check.status == "skipped"
    assert check.fix == "pip install 'seeupo[lora]'"


def test_a_package_that_cannot_be_imported_fails(monkeypatch, tmp_path):
    (tmp_path / "broken_package.py").write_text("raise ImportError('no library')\n")
    monkeypatch.setitem(checks.EXTRAS, "broken_package", ("lora", "tests"))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    check = optional_package("broken_package")
    assert (check.status, check.text) == ("failed", "cannot be imported: ImportError: no library")
    assert "install it again" in check.fix


@pytest.mark.parametrize(("path", "status"), [(None, "skipped"), ("/usr/bin/bwrap", "failed")])
def test_only_an_installed_sandbox_can_fail(monkeypatch, path, status):
    monkeypatch.setattr(checks, "find_bubblewrap", lambda: "a reason")
    monkeypatch.setattr(shutil, "which", lambda name: path)
    assert sandbox().status == status


def test_a_full_disk_fails(monkeypatch, tmp_path):
    assert disk(tmp_path / "not" / "there").status == "OK"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 0))
    assert disk(tmp_path).status == "failed"


def raise_error():
    raise RuntimeError("no gloo")


@pytest.mark.parametrize(
    ("measure", "status", "text"),
    [
        (lambda: 1e-6, "OK", "1.0e-06"),
        (lambda: 0.5, "failed", "5.0e-01"),
        (lambda: float("nan"), "failed", "nan"),
        (raise_error, "failed", "no gloo"),
    ],
)
def test_a_self_test_fails_if_the_difference_is_large_or_it_raises(measure, status, text):
    check = self_test("parity", measure, "difference")
    assert check.status == status
    assert text in check.text


def test_packages_are_imported_at_the_same_time_and_reported_in_order(monkeypatch):
    together = threading.Barrier(len(checks.EXTRAS) + 1, timeout=60)

    def import_package(package):
        together.wait()
        return Check(package, "OK", "")

    def run_self_tests():
        together.wait()
        return [Check("two ranks", "OK", "")]

    monkeypatch.setattr(checks, "optional_package", import_package)
    monkeypatch.setattr(checks, "self_tests", run_self_tests)
    names = [check.name for check in checks.run_checks()]
    assert [name for name in names if name in checks.EXTRAS] == list(checks.EXTRAS)
    assert (names[0], names[-1]) == ("versions", "two ranks")


@pytest.mark.parametrize(("status", "code"), [("OK", 0), ("skipped", 0), ("failed", 1)])
def test_the_exit_code_is_1_if_a_check_failed(monkeypatch, status, code):
    monkeypatch.setattr(checks, "run_checks", lambda: iter([Check("one", status, "text", "do this")]))
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == code
    assert "Fix: do this" in result.output
