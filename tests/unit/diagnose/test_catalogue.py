"""Rows of earlier scans: what is as it was is not judged again, and the table is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

import forensics
from forensics.diagnose.catalogue import COLUMNS, Catalogue
from forensics.diagnose.survey import Choice, SurveyRow, survey_one, unreadable
from forensics.errors import InputError, OutputError
from tests.unit.diagnose.test_survey import write_run


def scanned(file: Path, paths: list[str], choice: Choice | None = None) -> tuple[list[str], list]:
    """What a scan with a catalogue judges, and all its rows in the order of the paths."""
    chosen = choice or Choice()
    catalogue = Catalogue(file, chosen)
    rows = {row.path: row for row in catalogue.known(paths)}
    judged = [path for path in paths if path not in rows]
    for path in judged:
        rows[path] = survey_one(path, chosen)
        catalogue.add(rows[path])
    catalogue.save()
    return judged, [rows[path] for path in paths]


def test_only_what_changed_is_judged_again(tmp_path: Path) -> None:
    file = tmp_path / "scan.parquet"
    paths = [write_run(tmp_path / "a", bad_from=40), write_run(tmp_path / "b")]
    judged, first = scanned(file, paths)
    assert judged == paths
    judged, second = scanned(file, paths)
    assert judged == []
    assert second == first
    assert second[0].severity is not None
    assert second[1].severity is None
    write_run(tmp_path / "b", bad_from=10)
    judged, third = scanned(file, [*paths, write_run(tmp_path / "c")])
    assert [Path(path).name for path in judged] == ["b", "c"]
    assert third[1].status == "faulty"


def test_other_rules_thresholds_or_another_version_judge_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, paths = tmp_path / "scan.parquet", [write_run(tmp_path / "a", bad_from=40)]
    scanned(file, paths)
    for choice in (
        Choice(ignore=("nonfinite-loss",)),
        Choice(thresholds={"loss-spike": {"z": 9.0}}),
    ):
        assert scanned(file, paths, choice)[0] == paths
        assert scanned(file, paths, choice)[0] == []
    monkeypatch.setattr(forensics, "__version__", "99.0", raising=False)
    assert scanned(file, paths, choice)[0] == paths


def test_what_could_not_be_read_is_tried_again(tmp_path: Path) -> None:
    file, path = tmp_path / "scan.parquet", write_run(tmp_path / "a")
    catalogue = Catalogue(file, Choice())
    assert catalogue.known([path]) == []
    catalogue.add(unreadable(path, "the process that read it died"))
    catalogue.save()
    assert Catalogue(file, Choice()).known([path]) == []


def test_two_scans_at_once_are_merged(tmp_path: Path) -> None:
    file = tmp_path / "scan.parquet"
    paths = [write_run(tmp_path / name) for name in ("a", "b")]
    scans = [Catalogue(file, Choice()) for _ in paths]
    for scan, path in zip(scans, paths, strict=True):
        scan.known([path])
        scan.add(survey_one(path, Choice()))
    for scan in scans:
        scan.save()
    assert [row.path for row in Catalogue(file, Choice()).known(paths)] == paths


def test_a_path_of_any_bytes_and_any_cell_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "scan.parquet"
    path = write_run(tmp_path / "a\udcff ü")
    row = SurveyRow(path=path, status="healthy", step=None, wasted=0.1, steps=2**40, summary="é\n")
    catalogue = Catalogue(file, Choice())
    catalogue.known([path])
    catalogue.add(row)
    catalogue.save()
    assert Catalogue(file, Choice()).known([path]) == [row]


def test_another_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    text, other = tmp_path / "a.parquet", tmp_path / "b.parquet"
    text.write_text("mine")
    pq.write_table(pa.table({"path": ["x"]}), other)
    for file, what in ((text, "cannot be read as Parquet"), (other, "is no catalogue")):
        with pytest.raises(InputError, match=what):
            Catalogue(file, Choice())
    assert text.read_text() == "mine"


def test_a_directory_that_is_not_there_is_told_before_anything_is_judged(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="its directory does not exist"):
        Catalogue(tmp_path / "none" / "scan.parquet", Choice())


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet as pq

    file, path = tmp_path / "scan.parquet", write_run(tmp_path / "a")
    scanned(file, [path])
    before = file.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(OutputError, match="No space left"):
        Catalogue(file, Choice()).save()
    assert file.read_bytes() == before
    assert not list(tmp_path.glob(".*.tmp"))


def test_the_file_is_a_plain_table(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    file = tmp_path / "scan.parquet"
    scanned(file, [write_run(tmp_path / "a", bad_from=40)])
    table = pq.ParquetFile(file).read()
    assert tuple(table.column_names) == COLUMNS
    row = table.to_pylist()[0]
    assert (row["root"], row["step"], row["severity"]) == ("nonfinite-loss", 40, "critical")


@pytest.mark.parametrize(
    ("column", "values", "what"),
    [
        ("steps", ["3"], "is no catalogue"),
        ("severity", ["awful"], "has rows that no scan writes"),
        ("path", [None], "has rows that no scan writes"),
    ],
)
def test_a_table_like_a_catalogue_is_refused_too(
    tmp_path: Path, column: str, values: list[object], what: str
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = tmp_path / "c.parquet"
    scanned(file, [str(write_run(tmp_path / "a"))])
    table = pq.read_table(file)
    kind = pa.string()
    changed = table.set_column(
        table.column_names.index(column), column, pa.array(values, type=kind)
    )
    pq.write_table(changed, file)
    with pytest.raises(InputError, match=what):
        Catalogue(file, Choice())
