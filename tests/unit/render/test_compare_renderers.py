"""Two runs side by side as text, Markdown and JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from forensics.diagnose.comparison import ColumnComparison, Comparison, Likeness
from forensics.diagnose.run_changes import Change
from forensics.diagnose.run_differences import Difference
from forensics.render.compare_json import render_compare_json
from forensics.render.compare_markdown import render_compare_markdown
from forensics.render.compare_text import render_compare_text, signed

EVIL = "\x1b[31mred\n| \u202e<b>\x9b2J"


def comparison(**changes: object) -> Comparison:
    value = Comparison(
        path_a="runs/a",
        path_b="runs/b",
        rtol=0.0,
        likeness=Likeness.DIFFERENT,
        reason="they part at step 120, first in the learning rate: another schedule",
        common=1000,
        first_step=0,
        last_step=999,
        only_a=0,
        only_b=3,
        longer_a=0,
        longer_b=200,
        columns=(
            ColumnComparison(
                name="lr",
                first=120,
                beyond=120,
                noticeable=None,
                largest=0.002,
                a="0.001",
                b="0.001002",
            ),
            ColumnComparison(
                name="loss",
                first=121,
                beyond=121,
                noticeable=400,
                largest=float("inf"),
                a="2.5",
                b="nan",
            ),
            ColumnComparison(name="skipped", first=None, beyond=None, noticeable=None, largest=0.0),
        ),
        one_sided=("val_loss",),
        differences=(
            Difference(group="config", key="optimizer.lr", a="0.001", b="0.002"),
            Difference(group="code", key="git.commit", a="abc", b=""),
        ),
        changes=(
            Change(name="loss", a=2.4, b=2.6, difference=0.08, noise=0.01, changed=True),
            Change(name="clip rate", a=0.12, b=0.13, difference=0.01, noise=0.05, changed=False),
        ),
        bad_a=None,
        bad_b=650,
    )
    return replace(value, **changes)  # type: ignore[arg-type]


def test_text_answers_first_and_fits_80_columns() -> None:
    text = render_compare_text(comparison())
    assert max(map(len, text.splitlines())) <= 80
    assert text.index("ANSWER    different") < text.index("PARTS AT STEP") < text.index("CONFIG")
    flat = " ".join(text.split())
    for told in (
        "1,000 steps in common, 0 to 999 · 3 in B only · B goes on for 200 more",
        "B goes non-finite at 650",
        "lr 120 – 0.002",
        "loss 121 400 n/a",
        "lr at 120: A 0.001 B 0.001002",
        "SAME skipped",
        "ONE ONLY val_loss",
        "loss 2.4 2.6 +8 % ±1",
        "clip rate 12 % 13 % +1 points ±5",
        "Changed by more than chance: loss; clip rate did not.",
        "CODE git.commit: A abc B not there",
    ):
        assert told in flat, told


def test_a_nonfinite_stretch_is_never_what_another_seed_makes() -> None:
    bad = Change(name="non-finite rate", a=0, b=0.42, difference=0.42, noise=0, changed=True)
    still = Change(name="loss", a=1.9, b=1.9, difference=0, noise=0.01, changed=False)
    flat = " ".join(render_compare_text(comparison(changes=(bad, still))).split())
    assert "non-finite rate 0 % 42 % +42 points" in flat
    assert "Changed by more than chance: non-finite rate; loss did not." in flat
    assert "compared where both runs are finite" in flat
    assert "another seed" not in flat


def test_differences_are_written_as_a_person_reads_them() -> None:
    assert [signed(v) for v in (-100.0, 46.2, 1234.0, 8.04)] == ["-100", "+46", "+1,234", "+8"]


def test_of_two_recipes_only_the_first_differences_are_told() -> None:
    made = tuple(
        Difference(group="config", key=key, a="1", b="2")
        for key in ("recipe.name", *(f"optimizer.{i}" for i in range(30)))
    )
    assert "… and 23 more" in render_compare_text(comparison(differences=made))
    assert "… and 6 more" in render_compare_text(comparison(differences=made[1:]))


def test_text_has_a_column_for_the_tolerance_where_there_is_one() -> None:
    text = render_compare_text(comparison(rtol=1e-5))
    assert "beyond 1e-5" in text
    assert "beyond" not in render_compare_text(comparison()).split("ANSWER")[1].split("lr at")[0]


def test_text_of_the_same_run_is_short() -> None:
    same = comparison(
        likeness=Likeness.IDENTICAL,
        columns=(comparison().columns[2],),
        differences=(),
        changes=(),
        reason="all 1 common columns are the same to the last bit",
    )
    text = render_compare_text(same)
    assert "ANSWER    same: all" in text
    assert "PARTS" not in text
    assert "AS A WHOLE" not in text


def test_text_folds_many_differences() -> None:
    many = tuple(Difference(group="config", key=f"k{i}", a="1", b="2") for i in range(60))
    text = render_compare_text(comparison(differences=many))
    assert "36 more differences" in text
    assert text.count("CONFIG") == 1


@pytest.mark.parametrize("colour", [False, True])
def test_no_text_of_a_log_reaches_the_terminal_raw(colour: bool) -> None:
    column = replace(comparison().columns[0], name=EVIL, a=EVIL)
    difference = Difference(group="config", key=EVIL, a=EVIL, b=EVIL)
    evil = comparison(
        path_a=EVIL, reason=EVIL, columns=(column,), one_sided=(EVIL,), differences=(difference,)
    )
    text = render_compare_text(evil, colour=colour)
    assert "\x9b" not in text
    assert "\u202e" not in text
    assert "\x1b[31mred" not in text
    markdown = render_compare_markdown(evil)
    assert "\x1b" not in markdown
    assert "<b>" not in markdown
    assert render_compare_json(evil).isascii()


def test_json_is_strict_and_names_the_answer() -> None:
    data = json.loads(render_compare_json(comparison()), parse_constant=pytest.fail)
    assert data["format_version"] == 1
    told = data["comparison"]
    assert told["likeness"] == "different"
    assert told["columns"][1]["largest"] == "Infinity"
    assert told["columns"][2]["first"] is None
    assert told["changes"][0]["changed"] is True
    tolerant = comparison(likeness=Likeness.WITHIN_TOLERANCE)
    assert json.loads(render_compare_json(tolerant))["comparison"]["likeness"] == "within-tolerance"


def test_markdown_has_a_table_each() -> None:
    text = render_compare_markdown(comparison()).replace("\\", "")
    assert "**Answer:** different" in text
    assert "| lr | 120 | – | 0.002 | 0.001 | 0.001002 |" in text
    assert "| config | optimizer.lr | 0.001 | 0.002 |" in text
