"""Writing the parts of a capsule."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch

from forensics.replay.capsule.folder import save


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device here")
def test_a_full_disk_is_told_in_the_systems_words() -> None:
    """Torch makes a RuntimeError of it that speaks of positions in an archive."""
    with pytest.raises(OSError, match="No space left on device") as caught:
        save({"weight": torch.ones(1 << 16)}, Path("/dev/full"))
    assert caught.value.errno == errno.ENOSPC
