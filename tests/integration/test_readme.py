"""The README tells the truth: its commands are CI's, and the report it shows is the real one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def readme_commands() -> list[str]:
    return re.findall(r"```sh\n(.+)\n```", README)


def test_ci_runs_exactly_the_two_commands_of_the_readme() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    ran = [line for line in lines if line.startswith("python3 -m venv")]
    assert ran == readme_commands()
    assert len(ran) == 2


def test_the_report_in_the_readme_is_what_the_command_prints(
    pytestconfig: pytest.Config,
) -> None:
    shown = re.search(r"<!-- report (\S+) -->\n```text\n(.*?)```", README, re.DOTALL)
    assert shown is not None
    command = [sys.executable, "-m", "forensics", "report", shown[1]]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    if pytestconfig.getoption("--renew"):
        start, end = shown.span(2)
        renewed = f"{README[:start]}{printed.stdout.rstrip()}\n{README[end:]}"
        (ROOT / "README.md").write_text(renewed, encoding="utf-8")
        return
    assert shown[2].rstrip() == printed.stdout.rstrip()


def test_every_verb_is_in_the_readme() -> None:
    from forensics.cli.verbs import VERBS

    for verb in VERBS:
        assert f"`forensics {verb}" in README


def test_every_page_the_readme_links_to_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
