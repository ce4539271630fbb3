import math
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.errors import InputError, UsageError
from forensics.record.config import Config, OptimizerConfig, ScalerConfig, ScheduleConfig
from forensics.record.settings_toml import parse_assignments, read_settings, to_toml
from forensics.runlog.manifest import Manifest, write_manifest

positive = st.floats(1e-30, 1e30)
configs = st.builds(
    Config,
    steps=st.integers(1, 10**9),
    seed=st.integers(0, 2**63 - 1),
    precision=st.sampled_from(("fp32", "fp16", "bf16", "auto")),
    device=st.sampled_from(("auto", "cpu", "cuda:1")),
    max_norm=st.none() | positive,
    accumulation=st.integers(1, 64),
    ema_decay=st.none() | st.floats(0, 1, exclude_max=True),
    optimizer=st.builds(
        OptimizerConfig,
        name=st.sampled_from(("sgd", "adam", "adamw")),
        lr=st.floats(0, 1e6),
        betas=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    ),
    schedule=st.builds(ScheduleConfig, warmup_steps=st.integers(0, 10**6)),
    scaler=st.builds(ScalerConfig, init_scale=positive, floor=st.floats(0, 1)),
    model=st.dictionaries(
        st.text(min_size=1),
        st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.text() | st.floats(allow_nan=False),
        max_size=4,
    ),
)


@given(configs)
@settings(deadline=None, max_examples=60)
def test_a_config_comes_back_from_its_dict(config):
    assert Config.from_dict(config.to_dict()) == config


@given(configs)
@settings(deadline=None, max_examples=60)
def test_a_config_comes_back_from_toml(config):
    assert Config.from_dict(tomllib.loads(to_toml(config.to_dict()))) == config


def test_a_config_comes_back_from_a_file(tmp_path):
    config = Config(max_norm=None, model={"naïve key": "two\nlines", "rates": [0.1, math.inf]})
    file = tmp_path / "run.toml"
    file.write_text(to_toml(config.to_dict()), encoding="utf-8")
    assert Config.from_dict(read_settings(file)) == config


def test_what_is_not_said_stays_as_it_was():
    base = Config(steps=7, optimizer=OptimizerConfig("sgd", lr=0.5), model={"width": 8})
    config = Config.from_dict({"optimizer": {"momentum": 0.9}}, base=base)
    assert config.optimizer == OptimizerConfig("sgd", lr=0.5, momentum=0.9)
    assert (config.steps, config.model) == (7, {"width": 8})


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"stepz": 3}, "run.toml: there is no setting stepz; did you mean steps?"),
        ({"lr": 0.1}, "run.toml: there is no setting lr; did you mean optimizer.lr?"),
        (
            {"optimizer": {"nmae": "sgd"}},
            "run.toml: there is no setting optimizer.nmae; did you mean optimizer.name?",
        ),
        (
            {"model": {"widht": 3}},
            "run.toml: there is no setting model.widht; did you mean model.width?",
        ),
        ({"steps": "3"}, "run.toml: steps must be a whole number, not '3'"),
        ({"steps": 3.0}, "run.toml: steps must be a whole number, not 3.0"),
        ({"steps": True}, "run.toml: steps must be a whole number, not True"),
        ({"steps": 0}, "run.toml: steps must be at least 1, not 0"),
        ({"max_norm": 0}, "run.toml: max_norm must be above 0, not 0"),
        ({"max_norm": "off"}, "run.toml: max_norm must be a number or \"none\", not 'off'"),
        ({"ema_decay": 1.0}, "run.toml: ema_decay must be below 1, not 1.0"),
        (
            {"schedule": {"min_lr_ratio": 2}},
            "run.toml: schedule.min_lr_ratio must be at most 1, not 2",
        ),
        (
            {"optimizer": {"lr": math.nan}},
            "run.toml: optimizer.lr must be at least 0, not nan",
        ),
        (
            {"optimizer": {"betas": [0.9]}},
            "run.toml: optimizer.betas must be a list of two numbers, not [0.9]",
        ),
        (
            {"precision": "fp8"},
            "run.toml: precision must be one of fp32, fp16, bf16, auto, not 'fp8'",
        ),
        ({"optimizer": 3}, "run.toml: optimizer must be a table, not 3; write [optimizer]"),
        ({"model": {"width": "3"}}, "run.toml: model.width must be a whole number, not '3'"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(wrong, line):
    base = Config(model={"width": 8})
    with pytest.raises(UsageError) as raised:
        Config.from_dict(wrong, base=base, where="run.toml")
    assert raised.value.line() == line


def test_none_is_written_as_text():
    assert Config.from_dict({"max_norm": "none"}).max_norm is None
    assert Config.from_dict({"max_norm": None}).max_norm is None
    with pytest.raises(UsageError):
        Config.from_dict({"steps": "none"})


def test_a_recipe_without_model_settings_takes_any():
    config = Config.from_dict({"model": {"depth": 3, "tied": True}})
    assert config.model == {"depth": 3, "tied": True}


def test_a_number_setting_takes_a_whole_number():
    lr = Config.from_dict({"optimizer": {"lr": 1}}).optimizer.lr
    assert (lr, type(lr)) == (1.0, float)
    assert Config.from_dict({"model": {"gain": 2}}, base=Config(model={"gain": 1.5})).model == {
        "gain": 2.0
    }


def test_assignments_are_read_as_toml_reads_them():
    given = parse_assignments(
        [
            "optimizer.lr=1e-3",
            "optimizer.betas=[0.9, 0.95]",
            "device = cuda:1",
            "model.tied=true",
            'model.name="3"',
            "max_norm=.5",
            "steps=3",
            "steps=4",
        ]
    )
    assert given == {
        "optimizer": {"lr": 1e-3, "betas": [0.9, 0.95]},
        "device": "cuda:1",
        "model": {"tied": True, "name": "3"},
        "max_norm": 0.5,
        "steps": 4,
    }


@pytest.mark.parametrize("wrong", ["lr", "=3", "optimizer.=3", ""])
def test_what_is_no_assignment_is_refused(wrong):
    with pytest.raises(UsageError, match="write key=value"):
        parse_assignments([wrong])


def test_a_name_cannot_be_a_value_and_a_table():
    with pytest.raises(UsageError, match="as a value and as a table"):
        parse_assignments(["model=3", "model.width=4"])
    assert parse_assignments(["model.width=4", "model=3"]) == {"model": 3}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"steps = ", "is not valid TOML"),
        (b"steps = 1\nsteps = 2\n", "is not valid TOML"),
        (b"\xff\xfe\x00", "is not a text file"),
    ],
)
def test_a_file_that_is_no_toml_is_one_clear_line(tmp_path, content, what):
    file = tmp_path / "run.toml"
    file.write_bytes(content)
    with pytest.raises(InputError, match=what) as raised:
        read_settings(file)
    assert str(file) in raised.value.line()


def test_no_such_file_and_a_directory(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_settings(tmp_path / "none.toml")
    with pytest.raises(InputError, match="cannot be read"):
        read_settings(tmp_path)


def test_settings_are_read_from_the_manifest_of_a_run(tmp_path: Path) -> None:
    config = Config(steps=70, max_norm=None)
    write_manifest(tmp_path, Manifest(recipe={"config": config.to_dict()}))
    assert Config.from_dict(read_settings(tmp_path / "run.json")) == config
    write_manifest(tmp_path, Manifest())
    with pytest.raises(InputError, match="nothing about the settings"):
        read_settings(tmp_path / "run.json")


def test_a_table_stands_for_a_part_of_the_config() -> None:
    config = Config(scaler={"init_scale": 8.0}, optimizer={"name": "sgd"})  # type: ignore[arg-type]
    assert config.scaler == ScalerConfig(init_scale=8.0)
    assert config.optimizer.name == "sgd"
    assert Config.from_dict(config.to_dict()) == config


def test_a_part_of_another_kind_is_refused() -> None:
    with pytest.raises(UsageError, match=r"scaler\.no_such"):
        Config(scaler={"no_such": 1})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="scaler must be"):
        Config(scaler=8.0)  # type: ignore[arg-type]
