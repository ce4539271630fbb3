from __future__ import annotations

import pytest

from forensics.errors import UsageError
from forensics.runlog.scanner.loss_like import loss_like, suggested_loss
from forensics.runlog.scanner.names import canonical_name, mapped_names, name_columns


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("train/loss", "loss"),
        ("tidy-sky-7 - train/loss", "loss"),
        ("a - b - eval/loss", "val_loss"),
        ("optimization/grad_norm", "grad_l2_pre_clip"),
        ("loss/train/total", "loss"),
        ("losses/eval/mean_loss", "val_loss"),
        ("grad-norm/grad-norm", "grad_l2_pre_clip"),
        ("loss-scale/loss-scale", "scaler_scale"),
        ("lm loss/lm loss", "loss"),
        ("lr-AdamW/pg1", "lr"),
        ("Learning Rate", "lr"),
        ("trainer/global_step", "step"),
        ("progress/global_step", "step"),
        ("progress.step", "step"),
        ("anything/num_updates", "step"),
        ("log/progress/epoch", "epoch"),
        ("eval/global_step", None),
        ("solver/iterations", None),
        ("time/step", None),
        ("gnorm", "grad_l2_pre_clip"),
        ("loss", "loss"),
        ("lr_1", "lr_1"),
        ("TrainLoss", "loss"),
        ("opt_step", "step"),
        ("timesteps", "step"),
        ("train/step_skipped", "skipped"),
        ("time/total_timesteps", "step"),
        ("batch_idx", "step"),
        ("grads/norm", "grad_l2_pre_clip"),
        ("grad_norm_unclipped", "grad_l2_pre_clip"),
        ("grad_norm_post_clip", "grad_l2_post_clip"),
        ("ValLoss", "val_loss"),
        ("GradNorm", "grad_l2_pre_clip"),
        ("train/CrossEntropyLoss", "loss"),
        ("LR", "lr"),
        ("Epoche", "epoch"),
        ("LossPi", None),
        ("BestLoss", None),
        ("embeddings/text/norm", None),
        ("train/loss_cls", None),
        ("min_lr", None),
        ("total_steps", None),
        ("val_acc", None),
        ("eval/grad_norm", None),
        ("", None),
    ],
)
def test_a_name_tells_its_column(name: str, column: str | None) -> None:
    assert canonical_name(name) == column


def test_the_exact_name_goes_before_the_first_alike() -> None:
    assert name_columns(["train/loss", "loss", "lr"]) == {"loss": "loss", "lr": "lr"}


def test_the_trainers_step_goes_before_the_loggers() -> None:
    assert name_columns(["_step", "train/global_step", "train/loss"]) == {
        "train/global_step": "step",
        "train/loss": "loss",
    }


def test_a_mapping_finds_its_column_with_and_without_the_runs_name() -> None:
    there = ["Step", "run-1 - my/loss"]
    assert mapped_names(there, {"loss": "my/loss"}) == {"run-1 - my/loss": "loss"}
    assert mapped_names(there, {"loss": "run-1 - my/loss"}) == {"run-1 - my/loss": "loss"}


@pytest.mark.parametrize(
    ("mapping", "said"),
    [({"loss": "mine"}, "the log has no 'mine'"), ({"los": "a"}, "'los' is no column")],
)
def test_a_mapping_that_makes_no_sense_is_refused(mapping: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        mapped_names(["a", "b"], mapping)


@pytest.mark.parametrize(
    ("names", "loss"),
    [
        (["step", "mean_loss", "a_loss", "b_loss"], "mean_loss"),
        (["step", "policy_loss"], "policy_loss"),
        (["step", "a_loss", "b_loss"], None),
        (["step", "val_loss", "loss_scale", "best_loss"], None),
        (["iteration", "train_ce", "gnorm"], "train_ce"),
        (["step", "ce", "val_ce"], "ce"),
        (["step", "train/cross_entropy", "acc"], "train/cross_entropy"),
        (["step", "Train NLL"], "Train NLL"),
        (["step", "bce", "total_loss"], "total_loss"),
        (["step", "ce", "nll"], None),
        (["step", "aux_ce", "ece", "eval_xent", "nllb"], None),
    ],
)
def test_a_loss_by_another_name(names: list[str], loss: str | None) -> None:
    assert loss_like(names) == ({} if loss is None else {loss: "loss"})


def test_a_criterion_in_a_line_of_words_tells_no_loss() -> None:
    assert loss_like(["ce", "acc"], criteria=False) == {}


@pytest.mark.parametrize(
    ("names", "loss"),
    [
        (["my_objective", "acc"], "my_objective"),
        (["aux_ce", "val_ce"], "aux_ce"),
        (["a_loss", "b_loss"], None),
        (["acc", "place", "closs_scale"], None),
        ([], None),
    ],
)
def test_a_column_that_may_be_the_loss_is_suggested_if_it_is_alone(
    names: list[str], loss: str | None
) -> None:
    assert suggested_loss(names) == loss


def test_the_validation_of_a_likely_loss_is_found_by_its_name() -> None:
    names = ["train_elbo_loss", "train_kl_loss", "val_elbo_loss", "val_kl_loss"]
    assert loss_like(names) == {"train_elbo_loss": "loss", "val_elbo_loss": "val_loss"}
    assert loss_like([*names, "val_loss"]) == {"train_elbo_loss": "loss"}
    assert loss_like(["trainElboLoss", "valElboLoss"]) == {
        "trainElboLoss": "loss",
        "valElboLoss": "val_loss",
    }


def test_an_environments_steps_count_where_nothing_else_does() -> None:
    there = ["time/total_timesteps", "time/iterations", "train/loss"]
    assert name_columns(there)["time/iterations"] == "step"
    assert name_columns(["timesteps", "loss"])["timesteps"] == "step"
