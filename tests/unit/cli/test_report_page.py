"""``forensics report`` as a page: by format or by the file's name, and only when asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forensics.cli import main
from tests.unit.cli.test_report import write_log


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return write_log(tmp_path / "sick.csv", bad_from=200).name


@pytest.mark.parametrize("arguments", [["--out", "r.html"], ["--format", "html", "--out", "r.txt"]])
def test_the_page_is_written_where_it_is_asked_for(
    log: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", log, *arguments]) == 0
    page = Path(arguments[-1]).read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert '<figure data-chart="loss">' in page  # the run is still there to be drawn
    assert capsys.readouterr().out == ""


def test_a_pipe_takes_it(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", log, "--format", "html"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("</html>")


def test_a_terminal_does_not(
    log: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert main(["report", log, "--format", "html"]) == 2
    assert "--out report.html" in capsys.readouterr().err


def test_what_cannot_be_read_is_told_in_the_page_as_well(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", log, "gone.csv", "--out", "r.html"]) == 2
    assert "gone.csv: no such file or directory" in Path("r.html").read_text(encoding="utf-8")
    assert "gone.csv" in capsys.readouterr().err


def test_other_verbs_have_no_page(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", log, log, "--format", "html"]) == 2
    assert main(["compare", log, log, "--out", "same.html"]) == 2
    assert "same.html: only a report is a page" in capsys.readouterr().err
    assert not Path("same.html").exists()


@pytest.mark.parametrize(("form", "loaded"), [("text", False), ("html", True)])
def test_only_a_page_loads_what_makes_it(log: str, form: str, loaded: bool) -> None:
    code = (
        "import sys; from forensics.cli import main; "
        f"main(['report', {log!r}, '--format', {form!r}, '--out', 'r']); "
        "print('jinja2' in sys.modules, {'torch', 'pandas', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{loaded} set()\n"
