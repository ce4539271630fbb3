import io
from collections import Counter, OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from forensics.record.portable import NotPortableError, portable


def through_a_safe_load(value):
    file = io.BytesIO()
    torch.save(portable(value), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_what_a_safe_load_refuses_comes_back_as_plain_values():
    back = through_a_safe_load(
        {
            "array": np.arange(3, dtype=np.uint32),
            "scalar": np.float64(0.5),
            "path": Path("a/b"),
            "set": {1},
            "tuple": (1, 2.5, None, "x"),
            "milestones": Counter({5: 1}),
            "ordered": OrderedDict(a=torch.ones(2)),
            "parameter": nn.Parameter(torch.ones(1)),
            3: b"bytes",
        }
    )
    assert back["array"].tolist() == [0, 1, 2]
    assert (back["scalar"], back["path"], back["set"]) == (0.5, "a/b", [1])
    assert back["tuple"] == (1, 2.5, None, "x")
    assert back["milestones"] == Counter({5: 1})
    assert not back["parameter"].requires_grad
    assert back[3] == b"bytes"


def test_subclasses_of_plain_types_become_plain():
    class Name(str):
        pass

    class Level(int):
        pass

    back = through_a_safe_load([Name("x"), Level(3), True])
    assert back == ["x", 3, True]
    assert [type(value) for value in back] == [str, int, bool]


@pytest.mark.parametrize("value", [object(), lambda: 0, np.array(["x"], dtype=object)])
def test_anything_else_is_named_and_refused(value):
    with pytest.raises(NotPortableError, match=r"extra\.deep\[0\]"):
        portable({"deep": [value]}, "extra")
