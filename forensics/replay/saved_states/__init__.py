"""Saved states of any format, opened safely: nothing in them runs, nothing is read before its use.

``find_states`` lists a folder, ``open_state`` opens one state, and its ``values`` are its tensors
and numbers, one after the other, memory-mapped. What cannot be read is one ``InputError``.
"""

from forensics.replay.saved_states.finder import (
    StateFile,
    find_states,
    is_state_folder,
    open_state,
    state_root,
)
from forensics.replay.saved_states.saved_state import SavedState, StateValue
from forensics.replay.saved_states.step_names import Position, Unit

__all__ = [
    "Position",
    "SavedState",
    "StateFile",
    "StateValue",
    "Unit",
    "find_states",
    "is_state_folder",
    "open_state",
    "state_root",
]
