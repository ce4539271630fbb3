import torch
from torch import Tensor, nn

from forensics.replay.tracing.call_site import Parts, Phase, call_site


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), Asks())

    def forward(self, inputs: Tensor) -> Tensor:
        return self.inner(inputs)


class Asks(nn.Module):
    """Notes where its forward is called."""

    def forward(self, inputs: Tensor) -> Tensor:
        self.site = call_site(self.parts)
        return inputs


def test_a_method_names_its_module_and_the_user_s_line():
    model = Model()
    model.inner[1].parts = Parts.of(model)
    model(torch.ones(1, 2))
    site = model.inner[1].site
    assert (site.phase, site.module, site.in_module) == (Phase.FORWARD, "inner.1", True)
    assert "call_site(self.parts)" in site.source_line


def test_a_loss_that_takes_the_model_is_no_method_of_it():
    model = Model()

    def loss(model, batch):
        del batch
        return call_site(Parts.of(model))

    site = loss(model, None)
    assert (site.phase, site.module, site.in_module) == (Phase.LOSS, "", False)
