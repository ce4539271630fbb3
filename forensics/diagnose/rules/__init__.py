"""The rules, in report order: one file each, its name is the rule's id."""

from __future__ import annotations

from forensics.diagnose.rule import Rule
from forensics.diagnose.rules.activation_overflow_risk import activation_overflow_risk
from forensics.diagnose.rules.broken_log import broken_log
from forensics.diagnose.rules.depth_decay import depth_decay
from forensics.diagnose.rules.depth_growth import depth_growth
from forensics.diagnose.rules.dominant_parameter import dominant_parameter
from forensics.diagnose.rules.frozen_parameter import frozen_parameter
from forensics.diagnose.rules.nonfinite_loss import nonfinite_loss
from forensics.diagnose.rules.rank_divergence import rank_divergence
from forensics.diagnose.rules.replica_drift import replica_drift
from forensics.diagnose.rules.resume_seam import resume_seam
from forensics.diagnose.rules.stale_second_moment import stale_second_moment
from forensics.diagnose.rules.update_ratio import update_ratio
from forensics.diagnose.rules.weight_growth import weight_growth

RULES: tuple[Rule, ...] = (
    # non-finite values
    nonfinite_loss,
    # loss scaling
    # clipping
    # gradients and parameters
    dominant_parameter,
    frozen_parameter,
    depth_decay,
    depth_growth,
    update_ratio,
    weight_growth,
    stale_second_moment,
    activation_overflow_risk,
    rank_divergence,
    # loss, learning rate, schedule
    resume_seam,
    broken_log,
    # also
    replica_drift,
)
