import numpy as np

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.clipping_frequent import clipping_frequent
from tests.unit.diagnose.healthy import found
from tests.unit.diagnose.rules.test_clipping_every_step import clipped


def test_fires_as_an_info_with_share_and_quantiles() -> None:
    (finding,) = found(clipping_frequent, clipped(3_000, 0.7))
    assert finding.severity is Severity.INFO
    assert "12 % of 2,702 steps between 298 and 2,999" in finding.message
    assert "clipped at 1; norm quantiles" in finding.message


def test_the_share_leaves_out_where_nearly_all_are_clipped() -> None:
    columns = clipped(4_000, 0.7)
    columns["grad_l2_pre_clip"][2_000:] = 9.0
    columns["grad_l2_post_clip"] = np.minimum(columns["grad_l2_pre_clip"], 1.0)
    (finding,) = found(clipping_frequent, columns)
    assert finding.last_step <= 2_000
    assert 0.6 < float(finding.message.split("99 %: ")[1].split(",")[0]) < 0.8  # of those rows


def test_the_quantiles_are_of_the_rows_it_tells_of_though_a_nan_came_before() -> None:
    columns = clipped(4_000, 0.7)
    columns["grad_l2_pre_clip"][:1_000] *= 50
    columns["loss"] = np.full(4_000, 2.0)
    columns["loss"][900] = np.nan
    (finding,) = found(clipping_frequent, columns)
    assert finding.first_step >= 990
    assert 0.6 < float(finding.message.split("99 %: ")[1].split(",")[0]) < 0.8


def test_silent_on_a_safety_net_and_when_nearly_all_is_clipped() -> None:
    assert not found(clipping_frequent, clipped(3_000, 0.3))
    assert not found(clipping_frequent, clipped(3_000, 9.0))
