"""The two scripts of a capsule."""

from __future__ import annotations

_REPRO = '''\
"""Replay step {step:,} from this folder, and confirm what it does.

{summary}

Needs torch and forensics. {trust}
"""

import sys
from pathlib import Path

from forensics.replay.capsule import run_capsule

here = Path(__file__).resolve().parent
verdict = run_capsule(here, recipe={recipe})
for line in (verdict.answer(), *verdict.differences):
    print(line)
sys.exit(0 if verdict.confirmed else 1)
'''

_OPERATOR = """\
import pathlib, torch
saved = torch.load(pathlib.Path(__file__).with_name("op.pt"), weights_only=True)
out = torch.ops.{name}(*saved["args"], **saved["kwargs"])
tensors = [t for t in torch.utils._pytree.tree_leaves([out, saved["args"]]) if torch.is_tensor(t)]
print("{name} made {kind} elements:", sum(int(t.{test}().sum()) for t in tensors))
"""


def repro_script(*, step: int, summary: str, recipe_source: str, recipe_name: str) -> str:
    """``repro.py``: running it is the user's own decision to trust the copied recipe."""
    if recipe_source:
        trust = f"It loads {recipe_source}, which is code: read it first if a stranger sent it."
        recipe = f"f\"{{here / '{recipe_source}'}}:{recipe_name}\""
    else:
        trust = f"It loads the installed recipe {recipe_name}."
        recipe = "None"
    told = summary.replace("\\", "/").replace('"""', "'''")
    return _REPRO.format(step=step, summary=told, trust=trust, recipe=recipe)


def operator_script(name: str, kind: str) -> str:
    """``repro_op.py``: five lines that need torch only.

    What made a NaN had none among its inputs, and what made an Inf only finite ones, so counting
    them over results and (written) arguments tells what the operator made.
    """
    words = {"nan": ("isnan", "NaN"), "inf": ("isinf", "Inf")}
    test, shown = words[kind]
    return _OPERATOR.format(name=name, test=test, kind=shown)
