"""Settings from files: found upwards, checked by name, and told apart from other people's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.diagnose.finding import Severity
from forensics.errors import ForensicsError, InputError, UsageError
from forensics.settings import Settings, check_rules, load_settings, nearest

WHOLE = """
select = ["gradient-spike", "loss-spike"]
ignore = ["loss-spike"]
fail-on = "warning"

[rules.gradient-spike]
z = 10
"""


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def in_pyproject(text: str) -> str:
    return text.replace("[rules.", "[tool.forensics.rules.").replace(
        "\nselect", "\n[tool.forensics]\nselect", 1
    )


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    return tmp_path


def threshold_of(rule_id: str) -> str:
    """The name of some threshold of a rule."""
    from forensics.diagnose.rules import RULES

    return next(iter(next(rule.sources() for rule in RULES if rule.id == rule_id)))


def whole() -> str:
    return WHOLE.replace("z =", f"{threshold_of('gradient-spike')} =")


@pytest.mark.parametrize("name", ["forensics.toml", "pyproject.toml"])
def test_all_settings_are_read_from_either_file_at_or_above(home: Path, name: str) -> None:
    text = whole() if name == "forensics.toml" else in_pyproject(whole())
    path = put(home / "a" / name, text)
    assert load_settings() == Settings(
        select=("gradient-spike", "loss-spike"),
        ignore=("loss-spike",),
        fail_on=Severity.WARNING,
        thresholds={"gradient-spike": {threshold_of("gradient-spike"): 10}},
        source=path,
    )


def test_none_is_no_settings() -> None:
    assert load_settings() == Settings()


def test_the_nearest_file_wins_whole(home: Path) -> None:
    put(home / "forensics.toml", 'fail-on = "info"')
    put(home / "a/b/forensics.toml", 'ignore = ["loss-spike"]')
    found = load_settings()
    assert (found.fail_on, found.ignore) == (None, ("loss-spike",))


def test_other_peoples_pyproject_is_passed_by_even_when_broken(home: Path) -> None:
    put(home / "a/b/pyproject.toml", "this is [not toml")
    put(home / "a/pyproject.toml", '[project]\nname = "x"\ndependencies = ["forensics"]\n')
    put(home / "forensics.toml", 'fail-on = "info"')
    assert load_settings().fail_on is Severity.INFO


def test_a_file_named_by_hand_is_the_only_one(home: Path) -> None:
    put(home / "a/b/forensics.toml", 'fail-on = "info"')
    path = put(home / "mine.toml", '[tool.forensics]\nfail-on = "error"')
    assert load_settings(path).fail_on is Severity.ERROR


def test_threshold_names_may_have_dashes(home: Path) -> None:
    path = put(home / "x.toml", "[rules.masked-nonfinite]\n[rules.resume-seam]\n")
    assert load_settings(path).thresholds == {"masked-nonfinite": {}, "resume-seam": {}}
    from forensics.diagnose.rules import RULES

    rule, name = next((r.id, n) for r in RULES for n in r.sources() if "_" in n)
    path = put(home / "y.toml", f"[rules.{rule}]\n{name.replace('_', '-')} = 3\n")
    assert load_settings(path).thresholds == {rule: {name: 3}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("selct = []", "'selct' is no setting; there are select, ignore, fail-on, rules"),
        ('ignore = "loss-spike"', "ignore must be a list of rule ids"),
        ("ignore = [1]", "ignore must be a list of rule ids"),
        ('ignore = ["loss-spke"]', "no rule is called 'loss-spke'; did you mean loss-spike"),
        ('fail-on = "fatal"', "fail-on cannot be 'fatal'; one of info, warning, error, critical"),
        ("fail-on = [1]", "fail-on cannot be [1]"),
        ("rules = 3", "rules must be a table"),
        ("[rules.nope]", "no rule is called 'nope'"),
        ("[rules]\nloss-spike = 3", "rules.loss-spike must be a table"),
        ("[rules.loss-spike]\nnope = 3", "'nope' is no threshold of loss-spike; there are"),
        ("[tool]\nforensics = 3", "setting must be a table"),
        ("a = ", "is not valid TOML"),
    ],
)
def test_what_makes_no_sense_is_one_line_that_names_the_file(
    home: Path, text: str, said: str
) -> None:
    path = put(home / "x.toml", text)
    with pytest.raises(ForensicsError) as caught:
        load_settings(path)
    assert caught.value.line().startswith(f"{path}: ")
    assert said in caught.value.line()
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("value", ["true", '"10"', "nan", "[1]"])
def test_a_threshold_is_a_number(home: Path, value: str) -> None:
    name = threshold_of("loss-spike")
    path = put(home / "x.toml", f"[rules.loss-spike]\n{name} = {value}\n")
    with pytest.raises(UsageError, match=f"loss-spike.{name} must be a number"):
        load_settings(path)


def test_unreadable_files_are_input_errors(home: Path) -> None:
    (home / "latin.toml").write_bytes(b"# caf\xe9\n")
    for path in (home / "none.toml", home / "a", home / "latin.toml"):
        with pytest.raises(InputError):
            load_settings(path)


def test_a_pyproject_named_by_hand_must_be_about_us(home: Path) -> None:
    path = put(home / "pyproject.toml", "[tool.other]\nx = 1\n")
    with pytest.raises(UsageError, match=r"no \[tool.forensics\] section"):
        load_settings(path)


def test_a_byte_order_mark_is_no_error(home: Path) -> None:
    path = home / "forensics.toml"
    path.write_bytes(b'\xef\xbb\xbffail-on = "error"\n')
    assert load_settings(path).fail_on is Severity.ERROR


def test_rule_names_on_the_command_line_are_checked_alike() -> None:
    check_rules(["loss-spike"], where="--select")
    with pytest.raises(UsageError, match="--select: no rule is called 'loss'; did you mean"):
        check_rules(["loss"], where="--select")


def test_the_nearest_names_are_at_most_three() -> None:
    assert nearest("abd", ["abc", "abe", "abf", "abg"]).count(" or ") == 2
    assert nearest("xyz", ["abc"]) == "`forensics rules` lists them"
