import pytest

from forensics.record.disk_guard import DiskGuard, still_missing


def fail(guard: DiskGuard, kind: str, step: int, error: Exception | None = None) -> None:
    guard.step = step
    with guard.writing(kind, RuntimeError):
        raise error or OSError(28, "No space left on device")


def test_an_error_is_said_once_a_kind_of_file():
    said: list[str] = []
    guard = DiskGuard(said.append)
    for step in (5, 6, 9):
        fail(guard, "steps.csv", step)
    fail(guard, "params", 9)
    assert len(said) == 2
    assert said[0].startswith("step 5: steps.csv cannot be written (No space left on device)")
    assert guard.missing == (
        "steps.csv: 3 writes failed between steps 5 and 9 (No space left on device)",
        "params: 1 write failed at step 9 (No space left on device)",
    )


def test_nothing_is_missing_where_nothing_failed():
    guard = DiskGuard(pytest.fail)
    with guard.writing("steps.csv"):
        pass
    assert guard.missing == ()


def test_what_earlier_segments_lost_is_kept():
    guard = DiskGuard(lambda line: None)
    guard.carry(("params: 1 write failed at step 3 (x)",))
    fail(guard, "steps.csv", 7)
    assert guard.missing[0] == "params: 1 write failed at step 3 (x)"
    assert len(guard.missing) == 2


def test_mistakes_of_ours_are_not_swallowed():
    guard = DiskGuard(lambda line: None)
    with pytest.raises(ValueError, match="ours"), guard.writing("steps.csv", RuntimeError):
        raise ValueError("ours")


def test_torchs_wrapper_is_told_by_its_cause():
    guard = DiskGuard(lambda line: None)
    wrapped = RuntimeError("PytorchStreamWriter failed writing file data/0\nframe #0")
    wrapped.__context__ = OSError(28, "No space left on device")
    fail(guard, "checkpoints", 0, wrapped)
    assert "No space left" in guard.missing[0]
    fail(guard, "other", 0, RuntimeError("failed\nframe #0"))
    assert guard.missing[1] == "other: 1 write failed at step 0 (failed)"


def test_what_a_resume_does_again_is_missing_no_more():
    guard = DiskGuard(lambda line: None)
    for step in (3, 9):
        fail(guard, "params", step)
    fail(guard, "steps.csv", 12)
    clauses = (*guard.missing, "a clause of another version")
    assert still_missing(clauses, 12) == (clauses[0], clauses[2])
    assert still_missing(clauses, 0) == (clauses[2],)
    assert still_missing(clauses, 13) == clauses
