from dataclasses import replace

import pytest

from forensics.errors import InputError, UsageError
from forensics.record.config import Config, OptimizerConfig, ScheduleConfig
from forensics.record.options import RecordOptions
from forensics.record.run_directory import (
    ResumePoint,
    check_columns,
    clear_run,
    find_resume_point,
    locked_directory,
)
from forensics.runlog.manifest import Manifest, write_manifest


def make_run(out, config: Config, **fields) -> None:
    out.mkdir(exist_ok=True)
    recipe = {"name": "toy", "config": config.to_dict()}
    write_manifest(out, Manifest(recipe=recipe, **fields))


class TestLocking:
    def test_a_new_directory_is_made_and_given_back(self, tmp_path):
        out = tmp_path / "deep" / "run"
        with locked_directory(RecordOptions(out)):
            assert (out / "run.lock").exists()
            with pytest.raises(UsageError, match="in use"), locked_directory(RecordOptions(out)):
                pass
        assert list(out.iterdir()) == []

    @pytest.mark.parametrize("name", ["run.json", "steps.csv"])
    def test_a_run_is_refused_unless_asked_for(self, tmp_path, name):
        (tmp_path / name).write_text("x")
        with (
            pytest.raises(UsageError, match="holds a run already; --resume"),
            locked_directory(RecordOptions(tmp_path)),
        ):
            pass
        for options in ({"resume": True}, {"overwrite": True}):
            with locked_directory(RecordOptions(tmp_path, **options)):
                assert (tmp_path / name).exists()

    def test_a_place_that_cannot_be_written(self, tmp_path):
        (tmp_path / "file").write_text("x")
        with (
            pytest.raises(InputError, match="cannot be written"),
            locked_directory(RecordOptions(tmp_path / "file" / "run")),
        ):
            pass


def test_clearing_removes_the_runs_own_files_and_nothing_else(tmp_path):
    for name in ("run.json", "steps.csv", "bisect.json", "notes.txt"):
        (tmp_path / name).write_text("x")
    for name in ("params", "checkpoints", "superseded", "code"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    clear_run(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["code", "notes.txt"]


class TestResumePoint:
    def find(self, out, config: Config, name: str = "toy"):
        self.said: list[str] = []
        return find_resume_point(RecordOptions(out, resume=True), name, config, self.said.append)

    def test_nothing_to_resume_begins_at_zero_and_says_so(self, tmp_path):
        assert self.find(tmp_path, Config()) is None
        assert "no run to resume" in self.said[0]

    def test_a_run_without_checkpoint_begins_again_and_says_so(self, tmp_path):
        make_run(tmp_path, Config())
        point = self.find(tmp_path, Config())
        assert (point.step, point.state) == (0, None)
        assert "beginning again at step 0" in self.said[0]

    def test_damaged_checkpoints_are_passed_over_and_said(self, tmp_path):
        make_run(tmp_path, Config())
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / "checkpoints" / "step-00000010.pt").write_bytes(b"torn")
        assert self.find(tmp_path, Config()).step == 0
        assert "step-00000010.pt: is no readable checkpoint" in self.said[0]

    @pytest.mark.parametrize(
        ("changed", "complaint"),
        [
            (Config(seed=3), "seed = 0, not 3"),
            (Config(optimizer=OptimizerConfig(lr=0.5)), "optimizer.lr = 0.001, not 0.5"),
            (Config(max_norm=None), "max_norm = 1.0, not None"),
            (Config(steps=50), "steps = 100, not 50"),
        ],
    )
    def test_another_config_is_refused_by_what_differs(self, tmp_path, changed, complaint):
        make_run(tmp_path, Config())
        with pytest.raises(UsageError, match=f"was recorded with {complaint}"):
            self.find(tmp_path, changed)

    def test_more_steps_prolong_a_run_whose_schedule_does_not_depend_on_them(self, tmp_path):
        make_run(tmp_path, Config())
        assert self.find(tmp_path, Config(steps=200)) is not None
        cosine = Config(schedule=ScheduleConfig(name="cosine"))
        make_run(tmp_path, cosine)
        with pytest.raises(UsageError, match="steps = 100, not 200"):
            self.find(tmp_path, replace(cosine, steps=200))

    def test_another_recipe_is_refused(self, tmp_path):
        make_run(tmp_path, Config())
        with pytest.raises(UsageError, match="is a run of toy, not of other"):
            self.find(tmp_path, Config(), "other")


def test_other_columns_are_refused_by_name(tmp_path):
    point = ResumePoint(Manifest(columns=("step", "loss")), 0, None, None)
    check_columns(point, ("step", "loss"), tmp_path)
    with pytest.raises(UsageError, match=r"other columns \(param_l2\)"):
        check_columns(point, ("step", "loss", "param_l2"), tmp_path)
