"""The configuration as lines."""

from forensics.render.html.configuration import MOST_LINES, configuration
from forensics.runlog.manifest import Manifest, ParameterInfo, Segment


def test_there_is_none_without_a_manifest() -> None:
    assert configuration(None) == []


def test_nested_settings_become_dotted_keys_and_what_is_unset_is_left_out() -> None:
    manifest = Manifest(
        recipe={"name": "gpt", "config": {"width": 64, "dropout": None, "tie": True}},
        precision="bf16",
        optimizer={"name": "AdamW", "betas": [0.9, 0.95]},
        segments=(Segment(start_step=0, started="2026-01-01", reason="start"),),
        parameters=(ParameterInfo(name="w"), ParameterInfo(name="b")),
    )
    lines = dict(configuration(manifest))
    assert lines["recipe.config.width"] == "64"
    assert lines["recipe.config.tie"] == "yes"
    assert "recipe.config.dropout" not in lines
    assert lines["optimizer.betas"] == "0.9, 0.95"
    assert lines["segments.0.reason"] == "start"
    assert lines["precision"] == "bf16"
    assert lines["parameters"] == "2"
    assert not any(key.startswith("parameters.") for key in lines)


def test_a_huge_config_is_cut_and_says_so() -> None:
    lines = configuration(Manifest(recipe={"config": {f"k{i}": i for i in range(1_000)}}))
    assert len(lines) == MOST_LINES + 1
    assert lines[-1][1].endswith("more lines in run.json")
