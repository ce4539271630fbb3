import pytest
import torch
from torch.amp import GradScaler

from forensics.errors import UsageError
from forensics.record.precision import Precision, choose_device, choose_precision

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


def quiet(line: str) -> None:
    raise AssertionError(f"nothing to say, but: {line}")


@pytest.fixture
def no_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


class TestDevice:
    def test_without_cuda_the_cpu_stands_in_and_says_so(self, no_cuda):
        said: list[str] = []
        for wanted in ("auto", "cuda", "cuda:1"):
            assert choose_device(wanted, said.append) == CPU
        assert [("CUDA" in line, "CPU" in line) for line in said] == [(True, True)] * 3

    def test_the_cpu_asked_for_is_silent(self):
        assert choose_device("cpu", quiet) == CPU

    def test_cuda_is_taken_where_it_is(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        assert choose_device("auto", quiet).type == "cuda"
        said: list[str] = []
        assert choose_device("cuda:3", said.append) == CPU
        assert "index 3" in said[0]

    def test_a_name_that_is_no_device_is_refused(self):
        with pytest.raises(UsageError, match="is no device"):
            choose_device("gpu0", quiet)


class TestAuto:
    @pytest.mark.parametrize(
        ("capability", "name"),
        [((7, 0), "fp16"), ((7, 5), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16"), ((12, 1), "bf16")],
    )
    def test_on_cuda_follows_the_compute_capability(self, monkeypatch, capability, name):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        assert choose_precision("auto", CUDA, quiet) == Precision(name, "cuda")

    def test_elsewhere_is_fp32(self):
        assert choose_precision("auto", CPU, quiet).name == "fp32"
        assert choose_precision("auto", torch.device("mps"), quiet).name == "fp32"

    def test_fp16_on_a_cpu_says_what_it_is(self):
        said: list[str] = []
        assert choose_precision("fp16", CPU, said.append).name == "fp16"
        assert "stand-in" in said[0]


class TestAutocast:
    @pytest.mark.parametrize(
        ("name", "dtype"),
        [("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)],
    )
    def test_runs_matrix_products_in_the_dtype(self, name, dtype):
        layer = torch.nn.Linear(4, 4)
        with Precision(name, "cpu").autocast():
            assert layer(torch.ones(2, 4)).dtype is dtype


class TestMisconfiguration:
    ENABLED, DISABLED = GradScaler("cpu"), GradScaler("cpu", enabled=False)

    def test_fp16_without_a_scaler(self):
        with pytest.raises(UsageError, match="without a GradScaler"):
            Precision("fp16", "cpu").check(self.DISABLED)

    @pytest.mark.parametrize("name", ["fp32", "bf16"])
    def test_a_scaler_without_fp16(self, name):
        with pytest.raises(UsageError, match=f"GradScaler with {name}"):
            Precision(name, "cpu").check(self.ENABLED)

    def test_the_right_pairs_pass(self):
        Precision("fp16", "cpu").check(self.ENABLED)
        Precision("fp32", "cpu").check(self.DISABLED)
        Precision("bf16", "cpu").check(self.DISABLED)
