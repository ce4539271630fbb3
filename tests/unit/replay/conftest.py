"""One recording for all tests of the replay, and a session on it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from forensics.record.config import Config
from forensics.record.options import RecordOptions
from forensics.record.recipe_lookup import find_recipe
from forensics.record.reference_loop import record_run
from forensics.replay.session import Session
from tests.unit.replay.bisections import LOG_OF_ZERO, recorded
from tests.unit.replay.recordings import USER_FILE, open_run, quiet


@pytest.fixture(scope="module")
def user_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten steps of a user's recipe with randomness in the model, and a digest of the parameters."""
    home = tmp_path_factory.mktemp("user")
    (home / "mine.py").write_text(USER_FILE)
    kind = find_recipe(f"{home / 'mine.py'}:mine")
    config = Config(steps=10, seed=3, ema_decay=0.9, max_norm=0.5)
    options = RecordOptions(
        out=home / "run",
        checkpoint_every=4,
        extras=("param_digest",),
        recipe_file=home / "mine.py",
        keep="last:9",
    )
    record_run(kind(config), config, options, say=quiet)
    return home


@pytest.fixture
def session(user_run: Path) -> Iterator[Session]:
    """A session on the user's run."""
    with open_run(user_run / "run", recipe=f"{user_run / 'mine.py'}:mine") as opened:
        yield opened


@pytest.fixture(scope="session")
def bad_sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A NaN in sample 7 of step 30."""
    return recorded("bad-sample", tmp_path_factory.mktemp("run") / "bad sample", 8)


@pytest.fixture
def copy(bad_sample: Path, tmp_path: Path) -> Path:
    """The same, to be spoilt."""
    return shutil.copytree(bad_sample, tmp_path / "run")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A user's own recipe in a file, which goes bad at step 9."""
    (tmp_path / "mine.py").write_text(LOG_OF_ZERO)
    return recorded(f"{tmp_path / 'mine.py'}:mine", tmp_path / "run", steps=14)
