"""Two real ranks that record faults and bisect them: one interpreter that forks them.

python -m tests.unit.replay.ranks.bisecting FOLDER
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed as dist
from torch.multiprocessing import start_processes

from tests.unit.record.ranks.two_ranks import free_ports
from tests.unit.replay.ranks import faulty_ranks
from tests.unit.replay.ranks.faulty_ranks import STOP
from tests.unit.replay.ranks.sharded_loop import record_sharded

SECONDS = 150
Command = Callable[..., None]
FAULTS = ("healthy", "nan-batch", "logarithm", "division", "gradient", "overflow", "average")
FURTHER = 1
SHARDED = {"nan-batch": True, "wears-out": False}
"""Faults that are recorded under ``fully_shard``, too, and whether a bad step is left out there."""
STOPPED = {"killed": (1, signal.SIGKILL), "interrupted": (0, signal.SIGINT)}


def recipe_of(fault: str) -> str:
    return f"{faulty_ranks.__file__}:{fault}"


def run_rank(rank: int, scenario: str, folder: Path, ports: list[int]) -> None:
    """What each forked process does: the command line, under a launcher's environment."""
    from forensics.cli import main

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    printed = (folder / f"{scenario}-{rank}.txt").open("w")
    os.dup2(printed.fileno(), 1)
    os.dup2(printed.fileno(), 2)
    left = iter(ports)
    codes: dict[str, int] = {}

    def forensics(name: str, *words: str) -> None:
        os.environ["MASTER_PORT"] = str(next(left))  # the store of the call before may linger
        began = time.monotonic()
        codes[name] = main(list(words))
        codes[f"{name} seconds"] = int(time.monotonic() - began)
        sys.stdout.flush()
        told = {"codes": codes, "printed": (folder / f"{scenario}-{rank}.txt").read_text()}
        (folder / f"{scenario}-{rank}.json").write_text(json.dumps(told))

    if scenario == "faults":
        for fault in FAULTS:
            _record(forensics, folder, fault)
        for fault in FAULTS:
            _bisect(forensics, folder, fault)
        forensics("alone", "bisect", str(_of_one_rank(folder, rank)))
    elif scenario == "sharded":
        _record_sharded(rank, folder, ports.pop())
        for fault in SHARDED:
            _bisect(forensics, folder, fault, run=f"sharded-{fault}")
        _bisect(forensics, folder, "wrapped", run=_copy(folder, rank, "sharded-nan-batch"))
    elif scenario == "raises":
        _record(forensics, folder, "raises")
    elif scenario == "raised":
        _bisect(forensics, folder, "raises")
    else:
        stopped, number = STOPPED[scenario]
        os.environ[STOP] = f"{stopped}:{int(number)}"
        _bisect(forensics, folder, "nan-batch", "--format", "json")


def _record(forensics: Command, folder: Path, fault: str) -> None:
    precision = ["--precision", "fp16"] if fault == "overflow" else []
    words = ["--checkpoint-every", "3", "--device", "cpu", *precision]
    forensics(fault, "record", recipe_of(fault), "--out", str(folder / fault), *words)


def _record_sharded(rank: int, folder: Path, port: int) -> None:
    place = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=2)
    for fault, guarded in SHARDED.items():
        record_sharded(folder / f"sharded-{fault}", recipe_of(fault), guarded=guarded)
    dist.destroy_process_group()


def _bisect(forensics: Command, folder: Path, fault: str, *words: str, run: str = "") -> None:
    further = ["--further-steps", str(FURTHER), *words]
    forensics(fault, "bisect", str(folder / (run or fault)), "--recipe", recipe_of(fault), *further)


def _copy(folder: Path, rank: int, run: str) -> str:
    """The same run without an answer in it; by the time that rank 0 asks for it, it is there."""
    if rank == 0:
        shutil.copytree(folder / run, folder / f"{run}-again")
        (folder / f"{run}-again" / "bisect.json").unlink()
    return f"{run}-again"


def _of_one_rank(folder: Path, rank: int) -> Path:
    """A run that one rank has trained, as far as its run.json says."""
    run = folder / "alone"
    if rank == 0:
        run.mkdir()
        manifest = json.loads((folder / "healthy" / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**manifest, "world_size": 1}))
        (run / "steps.csv").write_bytes((folder / "healthy" / "steps.csv").read_bytes())
    return run


def load_all() -> None:
    """What every rank needs, once for all that are forked."""
    import forensics.cli.bisect
    import forensics.cli.record
    import forensics.record.reference_loop
    import forensics.render.bisect_json
    import forensics.render.bisect_text
    import forensics.replay.bisect  # noqa: F401 - loaded for those that are forked


if __name__ == "__main__":
    where = Path(sys.argv[1])
    load_all()
    for name in ("faults", "sharded", "raises", "raised", *STOPPED):
        ranks = start_processes(
            run_rank,
            (name, where, free_ports(2 * len(FAULTS) + 1)),
            nprocs=2,
            start_method="fork",
            join=False,
        )
        for process in ranks.processes:  # nobody ends them: they must end by themselves
            process.join(SECONDS)
            if process.is_alive():
                process.kill()
