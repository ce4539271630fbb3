"""The rules, in report order: one file each, its name is the rule's id."""

from __future__ import annotations

from collections.abc import Mapping

from forensics.diagnose.rule import Rule
from forensics.diagnose.rules.activation_overflow_risk import activation_overflow_risk
from forensics.diagnose.rules.broken_log import broken_log
from forensics.diagnose.rules.clip_before_unscale import clip_before_unscale
from forensics.diagnose.rules.clip_contamination import clip_contamination
from forensics.diagnose.rules.clipping_every_step import clipping_every_step
from forensics.diagnose.rules.clipping_frequent import clipping_frequent
from forensics.diagnose.rules.clipping_ineffective import clipping_ineffective
from forensics.diagnose.rules.dead_run import dead_run
from forensics.diagnose.rules.depth_decay import depth_decay
from forensics.diagnose.rules.depth_growth import depth_growth
from forensics.diagnose.rules.dominant_parameter import dominant_parameter
from forensics.diagnose.rules.double_unscale import double_unscale
from forensics.diagnose.rules.frozen_parameter import frozen_parameter
from forensics.diagnose.rules.gradient_explosion import gradient_explosion
from forensics.diagnose.rules.gradient_spike import gradient_spike
from forensics.diagnose.rules.gradient_underflow import gradient_underflow
from forensics.diagnose.rules.gradient_vanishing import gradient_vanishing
from forensics.diagnose.rules.high_skip_rate import high_skip_rate
from forensics.diagnose.rules.instability_at_warmup_end import instability_at_warmup_end
from forensics.diagnose.rules.learning_rate_fault import learning_rate_fault
from forensics.diagnose.rules.loop_order import loop_order
from forensics.diagnose.rules.loss_divergence import loss_divergence
from forensics.diagnose.rules.loss_oscillation import loss_oscillation
from forensics.diagnose.rules.loss_plateau import loss_plateau
from forensics.diagnose.rules.loss_scale_collapse import loss_scale_collapse
from forensics.diagnose.rules.loss_scale_frozen import loss_scale_frozen
from forensics.diagnose.rules.loss_scale_oscillation import loss_scale_oscillation
from forensics.diagnose.rules.loss_scale_policy_broken import loss_scale_policy_broken
from forensics.diagnose.rules.loss_scale_runaway import loss_scale_runaway
from forensics.diagnose.rules.loss_spike import loss_spike
from forensics.diagnose.rules.lost_rank import lost_rank
from forensics.diagnose.rules.masked_nonfinite import masked_nonfinite
from forensics.diagnose.rules.nonfinite_gradient import nonfinite_gradient
from forensics.diagnose.rules.nonfinite_loss import nonfinite_loss
from forensics.diagnose.rules.nonfinite_parameter import nonfinite_parameter
from forensics.diagnose.rules.nonfinite_step_applied import nonfinite_step_applied
from forensics.diagnose.rules.nonfinite_validation import nonfinite_validation
from forensics.diagnose.rules.norm_overflow import norm_overflow
from forensics.diagnose.rules.overfitting import overfitting
from forensics.diagnose.rules.phantom_skip import phantom_skip
from forensics.diagnose.rules.poisoned_state import poisoned_state
from forensics.diagnose.rules.precision_mismatch import precision_mismatch
from forensics.diagnose.rules.rank_divergence import rank_divergence
from forensics.diagnose.rules.recurring_sample import recurring_sample
from forensics.diagnose.rules.repeated_batch import repeated_batch
from forensics.diagnose.rules.repeated_update import repeated_update
from forensics.diagnose.rules.replica_drift import replica_drift
from forensics.diagnose.rules.resume_seam import resume_seam
from forensics.diagnose.rules.stale_second_moment import stale_second_moment
from forensics.diagnose.rules.stuck_log import stuck_log
from forensics.diagnose.rules.unbounded_loss import unbounded_loss
from forensics.diagnose.rules.update_ratio import update_ratio
from forensics.diagnose.rules.weight_growth import weight_growth

GROUPS: Mapping[str, tuple[Rule, ...]] = {
    "non-finite values": (
        nonfinite_loss,
        nonfinite_gradient,
        nonfinite_parameter,
        norm_overflow,
        masked_nonfinite,
        dead_run,
        poisoned_state,
        nonfinite_step_applied,
    ),
    "loss scaling": (
        high_skip_rate,
        loss_scale_collapse,
        loss_scale_oscillation,
        loss_scale_frozen,
        loss_scale_policy_broken,
        loss_scale_runaway,
        precision_mismatch,
        gradient_underflow,
        double_unscale,
        phantom_skip,
    ),
    "clipping": (
        clipping_every_step,
        clipping_frequent,
        clipping_ineffective,
        clip_before_unscale,
        clip_contamination,
    ),
    "gradients and parameters": (
        gradient_spike,
        gradient_explosion,
        gradient_vanishing,
        dominant_parameter,
        frozen_parameter,
        depth_decay,
        depth_growth,
        repeated_update,
        loop_order,
        update_ratio,
        weight_growth,
        stale_second_moment,
        activation_overflow_risk,
        rank_divergence,
        replica_drift,
        lost_rank,
    ),
    "loss, learning rate, schedule": (
        loss_spike,
        loss_divergence,
        loss_plateau,
        loss_oscillation,
        unbounded_loss,
        learning_rate_fault,
        instability_at_warmup_end,
        overfitting,
        nonfinite_validation,
        recurring_sample,
        repeated_batch,
    ),
    "the log itself": (
        resume_seam,
        broken_log,
        stuck_log,
    ),
}
"""The rules by what they are about."""

RULES: tuple[Rule, ...] = tuple(rule for group in GROUPS.values() for rule in group)
"""Every rule, in report order."""
