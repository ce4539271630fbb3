"""Snapshots: written so that a kill loses none, read so that little is loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.runlog.activations import GRAD_STD, ActivationStore, ActivationWriter
from forensics.runlog.params import COUNTS, LAYOUT, STATISTICS, ParamStore, ParamWriter
from forensics.runlog.snapshot_layout import parts_in, statistic_array

NAMES = ["embed.weight", "blocks.0.w", "head.bias"]


def write(folder: Path, steps: int, group: int = 4, *, close: bool = True) -> Path:
    """Snapshots of three parameters at steps 0, 10, 20 …, and of one buffer."""
    writer = ParamWriter(folder / "params", group)
    for k in range(steps):
        grads = np.array([k, k + 0.5, -k], dtype=np.float64)
        writer.append(
            10 * k, NAMES, "param", {"grad_l2": grads, "grad_nonfinite": [0, int(k == 9), 0]}
        )
        writer.append(10 * k, ["bn.mean"], "buffer", {"value_l2": [k / 3]})
    if close:
        writer.close()
    else:
        kill(writer)
    return folder / "params"


def kill(writer: ParamWriter) -> None:
    """Leave a writer's journal as a killed process does."""
    assert writer._journal is not None
    writer._journal.abandon()
    writer._journal = None


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_appended_comes_back(tmp_path: Path) -> None:
    folder = write(tmp_path, 10)
    assert files(folder) == [f"part-{k:08d}.parquet" for k in range(3)]
    store = ParamStore(folder)
    assert store.steps.tolist() == list(range(0, 100, 10))
    assert store.names() == tuple(NAMES)
    assert store.names("buffer") == ("bn.mean",)
    assert store.names("ema") == ()
    matrix = store.matrix("grad_l2")
    assert matrix.values.dtype == np.float32
    assert matrix.values[:, 1].tolist() == [k + 0.5 for k in range(10)]
    assert matrix.present.all()
    counts = store.matrix("grad_nonfinite")
    assert counts.values.dtype == np.int64
    assert counts.values.sum() == 1
    buffers = store.matrix("value_l2", "buffer")
    assert buffers.names == ("bn.mean",)
    np.testing.assert_array_equal(buffers.values[:, 0], np.float32(np.arange(10) / 3))
    absent = store.matrix("v_ratio")
    assert not absent.present.any()
    assert np.isnan(absent.values).all()
    assert store.repairs == ()


def test_what_is_in_the_journal_is_read_too(tmp_path: Path) -> None:
    folder = write(tmp_path, 10, close=False)
    assert files(folder)[-1] == "part-00000002.arrows"
    store = ParamStore(folder)
    assert store.matrix("grad_l2").values[:, 0].tolist() == list(range(10))
    assert store.repairs == ()


def test_an_earlier_journal_is_compacted_by_the_next_writer(tmp_path: Path) -> None:
    folder = write(tmp_path, 6, close=False)
    writer = ParamWriter(folder, 4)
    assert files(folder) == ["part-00000000.parquet", "part-00000001.parquet"]
    writer.append(60, ["new"], "param", {"grad_l2": [1.0]})
    kill(writer)
    store = ParamStore(folder)
    assert store.names() == (*NAMES, "new")
    assert store.matrix("grad_l2").present[-1].tolist() == [False, False, False, True]


def test_a_journal_beside_its_parquet_part_counts_once(tmp_path: Path) -> None:
    folder = write(tmp_path, 3, close=False)
    journal = (folder / "part-00000000.arrows").read_bytes()
    ParamWriter(folder)
    (folder / "part-00000000.arrows").write_bytes(journal)
    assert len(ParamStore(folder).at(0)) == 4
    (folder / "part-00000000.parquet").write_bytes(b"broken")
    store = ParamStore(folder)
    assert len(store.at(0)) == 4
    assert store.repairs == ()


def test_a_journal_that_becomes_parquet_while_it_is_looked_for_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path, 3, close=False)
    listed = parts_in(folder)
    ParamWriter(folder)  # compacts it
    listings = [listed]
    monkeypatch.setattr(
        "forensics.runlog.snapshot_reader.parts_in",
        lambda directory: listings.pop() if listings else parts_in(directory),
    )
    store = ParamStore(folder)
    assert store.steps.tolist() == [0, 10, 20]
    assert store.repairs == ()
    assert not listings


@pytest.mark.parametrize("damage", ["cut", "nul tail", "nul inside", "flip"])
def test_a_torn_journal_gives_its_whole_snapshots(tmp_path: Path, damage: str) -> None:
    folder = write(tmp_path, 3, close=False)
    path = folder / "part-00000000.arrows"
    data = path.read_bytes()
    torn = {
        "cut": data[:-20],
        "nul tail": data + bytes(5000),
        "nul inside": data[:-150] + bytes(5000),
        "flip": data[:-70] + bytes([data[-70] ^ 1]) + data[-69:],
    }[damage]
    path.write_bytes(torn)
    store = ParamStore(folder)
    matrix = store.matrix("grad_l2")
    assert matrix.values[:2].tolist() == [[0.0, 0.5, 0.0], [1.0, 1.5, -1.0]]
    lost = [repair.kind for repair in store.repairs]
    assert lost == ([] if damage == "nul tail" else ["torn-snapshots"])
    if lost:
        assert store.matrix("value_l2", "buffer").steps.tolist() == [0, 10]
        ParamWriter(folder)
        assert files(folder) == ["part-00000000.arrows"], "the evidence was compacted away"


def test_a_journal_cut_anywhere_never_raises(tmp_path: Path) -> None:
    folder = write(tmp_path, 2, close=False)
    path = folder / "part-00000000.arrows"
    data = path.read_bytes()
    seen = set()
    for size in range(0, len(data), 37):
        path.write_bytes(data[:size])
        matrix = ParamStore(folder).matrix("grad_l2")
        seen.add(len(matrix.steps))
        assert matrix.values.tolist() == [[0.0, 0.5, 0.0], [1.0, 1.5, -1.0]][: len(matrix.steps)]
    assert seen == {0, 1, 2}


@pytest.mark.parametrize(
    "wreck",
    [
        b"",
        b"PAR1",
        b"x" * 1000,
        pytest.param(None, id="other columns"),
    ],
)
def test_a_broken_part_hides_no_other(tmp_path: Path, wreck: bytes | None) -> None:
    folder = write(tmp_path, 10)
    path = folder / "part-00000001.parquet"
    if wreck is None:
        pq.write_table(pa.table({"step": ["a"], "name": ["b"], "kind": ["c"]}), path)
    else:
        path.write_bytes(wreck)
    store = ParamStore(folder)
    assert store.matrix("grad_l2").steps.tolist() == [0, 10, 20, 30, 80, 90]
    (repair,) = store.repairs
    assert (repair.kind, repair.lossy) == ("broken-snapshots", True)
    assert "params/part-00000001.parquet" in repair.message


def test_names_of_strangers_make_no_paths(tmp_path: Path) -> None:
    names = ["../../etc/x", "a\0b", "naïve", "", "c:d"]
    with ParamWriter(tmp_path / "params") as writer:
        writer.append(0, names, "param", {"grad_l2": np.arange(5.0)})
    assert ParamStore(tmp_path / "params").names() == tuple(names)
    assert files(tmp_path / "params") == ["part-00000000.parquet"]
    assert files(tmp_path) == ["params"]


def test_a_name_that_is_no_part_is_left_alone(tmp_path: Path) -> None:
    folder = write(tmp_path, 1)
    for name in ("part-1.parquet", "part-00000007.txt", ".part-00000007.parquet.9.tmp", "x"):
        (folder / name).write_text("junk")
    store = ParamStore(folder)
    assert store.steps.tolist() == [0]
    assert store.repairs == ()


def test_no_directory_is_an_empty_store(tmp_path: Path) -> None:
    store = ParamStore(tmp_path / "params")
    assert store.steps.tolist() == []
    assert store.matrix("grad_l2").values.shape == (0, 0)
    assert len(store.at(0)) == 0
    assert len(store.first_nonfinite()) == 0
    assert store.repairs == ()


def test_the_first_nonfinite_is_found_through_the_counts_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path, 40)
    opened = []
    read = "forensics.runlog.snapshot_reader.read_parquet"
    real = __import__("forensics.runlog.snapshot_parts", fromlist=["x"]).read_parquet
    monkeypatch.setattr(
        read, lambda path, *rest: opened.append((path.name, rest[0])) or real(path, *rest)
    )
    rows = ParamStore(folder).first_nonfinite()
    assert (rows.step.tolist(), rows.names, rows.kinds) == ([90], ("blocks.0.w",), ("param",))
    assert rows.values["grad_nonfinite"].tolist() == [1]
    assert opened == [("part-00000002.parquet", ("step", "name", "kind", *COUNTS))]
    assert len(ParamStore(folder).first_nonfinite("buffer")) == 0


def test_one_step_reads_one_part_and_the_statistics_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path, 10)
    store = ParamStore(folder)
    rows = store.at(50, ["grad_l2"])
    assert rows.names == (*NAMES, "bn.mean")
    assert rows.values["grad_l2"][:3].tolist() == [5.0, 5.5, -5.0]
    assert rows.present["grad_l2"].tolist() == [True, True, True, False]
    assert set(rows.values) == {"grad_l2"}
    assert set(store.at(50).values) == set(STATISTICS)
    assert len(store.at(55)) == 0


def test_statistics_that_were_not_taken_are_absent_not_nan(tmp_path: Path) -> None:
    with ParamWriter(tmp_path / "params") as writer:
        masked = np.ma.masked_array([1.0, 2.0, 3.0], [False, True, False])
        stats = {
            "grad_l2": masked,
            "update_l2": [None, np.nan, 1.0],
            "value_nonfinite": [None, 2, 0],
        }
        writer.append(0, NAMES, "param", stats)
    store = ParamStore(tmp_path / "params")
    assert store.matrix("grad_l2").present.tolist() == [[True, False, True]]
    updates = store.matrix("update_l2")
    assert updates.present.tolist() == [[False, True, True]]
    assert np.isnan(updates.values[0, :2]).all()
    counts = store.matrix("value_nonfinite")
    assert counts.present.tolist() == [[False, True, True]]
    assert counts.values.tolist() == [[0, 2, 0]]


def test_a_finite_value_never_becomes_inf(tmp_path: Path) -> None:
    kind = LAYOUT.schema().field("grad_l2").type
    array = statistic_array(np.array([1e300, -1e300, np.inf, 1e-60, np.nan]), 5, kind)
    top = float(np.finfo(np.float32).max)
    assert array.to_pylist()[:4] == [top, -top, np.inf, 0.0]


@pytest.mark.parametrize(
    ("kind", "stats"),
    [
        ("weights", {"grad_l2": [1.0, 2.0, 3.0]}),
        ("", {"grad_l2": [1.0, 2.0, 3.0]}),
        ("param", {"typo": [1.0, 2.0, 3.0]}),
        ("param", {"grad_l2": [1.0, 2.0]}),
        ("param", {"grad_l2": np.ones((3, 1))}),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_no_row(
    tmp_path: Path, kind: str, stats: dict[str, object]
) -> None:
    with (
        ParamWriter(tmp_path / "params") as writer,
        pytest.raises(ValueError, match=r"kind|statistic"),
    ):
        writer.append(0, NAMES, kind, stats)
    assert ParamStore(tmp_path / "params").steps.tolist() == []


def test_unknown_statistics_are_a_key_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        ParamStore(tmp_path).matrix("grad_l3")


def test_a_full_disk_loses_the_snapshot_and_nothing_before_or_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.unit.runlog.test_step_writer import file_size_limit

    folder = write(tmp_path, 2, group=3, close=False)
    writer = ParamWriter(folder, 3)
    writer.append(20, NAMES, "param", {"grad_l2": [2.0, 2.5, -2.0]})
    (journal,) = folder.glob("*.arrows")
    size = journal.stat().st_size
    for step, limit in ((30, size + 1), (40, 10)):
        with file_size_limit(limit), pytest.raises(OSError, match="large"):
            writer.append(step, NAMES, "param", {"grad_l2": np.ones(3)})
    writer.append(60, NAMES, "param", {"grad_l2": [6.0, 6.5, -6.0]})
    writer.close()
    matrix = ParamStore(folder).matrix("grad_l2")
    assert matrix.steps.tolist() == [0, 10, 20, 60]
    assert ParamStore(folder).repairs == ()
    assert matrix.values[-1].tolist() == [6.0, 6.5, -6.0]


def test_where_compacting_fails_the_journal_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("forensics.runlog.snapshot_writer.write_parquet", refuse)
    folder = write(tmp_path, 10)
    assert all(name.endswith(".arrows") for name in files(folder))
    assert ParamStore(folder).steps.tolist() == list(range(0, 100, 10))


def test_a_parquet_part_is_small_and_its_counts_can_be_filtered(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    names = [f"blocks.{i}.attn.qkv.weight" for i in range(300)]
    with ParamWriter(tmp_path / "params") as writer:
        for step in range(100):
            norms = np.exp(generator.normal(size=(3, 300)))
            stats = dict(zip(("grad_l2", "grad_absmax", "value_l2"), norms, strict=True))
            writer.append(step, names, "param", {**stats, "grad_nonfinite": np.zeros(300, int)})
    path = tmp_path / "params" / "part-00000000.parquet"
    assert path.stat().st_size < 7 * 100 * 300 * 4
    metadata = pq.read_metadata(path)
    assert metadata.num_row_groups == 1
    columns = {
        metadata.row_group(0).column(i).path_in_schema: metadata.row_group(0).column(i)
        for i in range(10)
    }
    assert columns["grad_nonfinite"].statistics.max == 0
    assert columns["grad_l2"].statistics is None, (
        "NaN is missing from these: nobody may filter on them"
    )
    assert "BYTE_STREAM_SPLIT" in columns["grad_l2"].encodings


NUMBER = st.floats(width=32)


@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.lists(NUMBER | st.none(), min_size=3, max_size=3), min_size=1, max_size=9),
    st.integers(1, 4),
)
def test_any_values_come_back_whatever_the_grouping(
    tmp_path_factory: pytest.TempPathFactory, snapshots: list[list[float | None]], group: int
) -> None:
    folder = tmp_path_factory.mktemp("params")
    with ParamWriter(folder, group) as writer:
        for step, values in enumerate(snapshots):
            writer.append(step, NAMES, "param", {"grad_l2": values})
    matrix = ParamStore(folder).matrix("grad_l2")
    expected = np.array(
        [[np.nan if v is None else v for v in row] for row in snapshots], np.float32
    )
    np.testing.assert_array_equal(matrix.values, expected)
    assert matrix.present.tolist() == [[v is not None for v in row] for row in snapshots]


def test_activations_use_the_same_machinery(tmp_path: Path) -> None:
    modules = ["embed", "blocks.0.attn", "head"]
    with ActivationWriter(tmp_path / "activations", group=2) as writer:
        for step in range(5):
            stats = {
                "mean": [0.0, 0.1, 0.2],
                "absmax": [1, 2, 3 + step],
                "nonfinite": [0, 0, int(step > 2)],
            }
            writer.append(
                step, modules, {**stats, **({GRAD_STD: [1.0, None, 3.0]} if step == 0 else {})}
            )
    store = ActivationStore(tmp_path / "activations")
    assert store.modules == tuple(modules)
    assert store.matrix("absmax").values[:, 2].tolist() == [3.0, 4.0, 5.0, 6.0, 7.0]
    spread = store.matrix(GRAD_STD)
    assert spread.present.tolist() == [[True, False, True]] + [[False] * 3] * 4
    bad = store.first_nonfinite()
    assert (bad.step.tolist(), bad.names) == ([3], ("head",))


def test_writing_and_reading_import_no_pandas() -> None:
    import subprocess
    import sys

    code = (
        "import sys, tempfile, pathlib\n"
        "from forensics.runlog.params import ParamStore, ParamWriter\n"
        "folder = pathlib.Path(tempfile.mkdtemp())\n"
        "w = ParamWriter(folder, 1)\n"
        "for step in (0, 1):\n"
        "    w.append(step, ['a'], 'param', {'grad_l2': [1.0]})\n"
        "w.close()\n"
        "s = ParamStore(folder)\n"
        "s.first_nonfinite(); s.at(0); s.names(); s.steps\n"
        "assert s.matrix('grad_l2').values.shape == (2, 1)\n"
        "print('pandas' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False"]
