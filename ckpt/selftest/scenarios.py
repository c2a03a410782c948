"""The actions that are hit and cut off, each on a run made for it, and how it may end."""

from dataclasses import dataclass
from pathlib import Path

from ckpt import fs
from ckpt.selftest import deeds
from ckpt.selftest.crashes import Act
from ckpt.selftest.oracles import Expected, Standing

ADAPTER = "adapter.safetensors"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A run, an action on it, and what may be so when the action was cut off."""

    name: str
    prepare: Act
    act: Act
    expected: Expected
    is_broken: bool = False
    """Whether the run is in need of a recovery to begin with."""


def _saved(*saves: tuple[str, int]) -> Act:
    def prepare(run_dir: Path) -> None:
        for slot, label in saves:
            deeds.save(run_dir, slot, label)

    return prepare


def _then(*acts: Act) -> Act:
    def all_of_them(run_dir: Path) -> None:
        for act in acts:
            act(run_dir)

    return all_of_them


def _save(slot: str, label: int) -> Act:
    return lambda run_dir: deeds.save(run_dir, slot, label)


def _back_to(step: int) -> Act:
    return lambda run_dir: deeds.send_back(run_dir, step)


def _foreign_between_renames(run_dir: Path) -> None:
    """What AstrAI leaves when it dies between its two renames."""
    _saved(("step_1", 1))(run_dir)
    fs.rename(run_dir / "step_1", run_dir / ".step_1.retired-ab12cd34")
    _saved(("step_1", 2))(run_dir)
    fs.rename(run_dir / "step_1", run_dir / ".step_1.tmp-ab12cd34")
    fs.remove_tree(run_dir / ".ckpt")


def _slots(*labels: int | None) -> Standing:
    """How step_1, step_2 and so on stand."""
    return {f"step_{number}": label for number, label in enumerate(labels, start=1)}


_ONE = _saved(("step_1", 1))
_TWO = _saved(("step_1", 1), ("step_1", 2))
_THREE = _saved(("step_1", 1), ("step_1", 2), ("step_1", 3))
_THREE_SLOTS = _saved(("step_1", 1), ("step_2", 2), ("step_3", 3))
_TWO_FILES = _saved((ADAPTER, 1), (ADAPTER, 2))
_1, _12, _123 = frozenset({1}), frozenset({1, 2}), frozenset({1, 2, 3})

FIRST = Scenario(
    "the first save",
    _saved(), _save("step_1", 1),
    Expected(_slots(None), _slots(1), frozenset(), made=1),
)  # fmt: skip
NEW = Scenario(
    "a save under a new name",
    _ONE, _save("step_2", 2),
    Expected(_slots(1, None), _slots(1, 2), _1, made=2),
)  # fmt: skip
OVER = Scenario(
    "a save over a live one",
    _TWO, _save("step_1", 3),
    Expected(_slots(2), _slots(3), _12, made=3),
)  # fmt: skip
ROLL_BACK = Scenario(
    "a roll back",
    _TWO, deeds.roll_back,
    Expected(_slots(2), _slots(1), _12),
)  # fmt: skip
WITHDRAW = Scenario(
    "a withdrawal of two slots",
    _THREE_SLOTS, _back_to(1),
    Expected(_slots(1, 2, 3), _slots(1, None, None), _123),
)  # fmt: skip
UNDO_WITHDRAW = Scenario(
    "an undo of a withdrawal",
    _then(_THREE_SLOTS, _back_to(1)), deeds.undo,
    Expected(_slots(1, None, None), _slots(1, 2, 3), _123),
)  # fmt: skip
PRUNE = Scenario(
    "a prune",
    _THREE, lambda run_dir: deeds.prune(run_dir, keep_last=1),
    Expected(_slots(3), _slots(3), frozenset({2, 3})),
)  # fmt: skip
FOREIGN = Scenario(
    "a recovery of what another program left",
    _foreign_between_renames, deeds.recover,
    Expected(_slots(2), _slots(2), _12),
    is_broken=True,
)  # fmt: skip
FILE_OVER = Scenario(
    "a file over a live one",
    _TWO_FILES, _save(ADAPTER, 3),
    Expected({ADAPTER: 2}, {ADAPTER: 3}, _12, made=3),
)  # fmt: skip

SCENARIOS = (
    FIRST, NEW, OVER, ROLL_BACK, WITHDRAW, UNDO_WITHDRAW, PRUNE, FOREIGN, FILE_OVER,
    Scenario(
        "an undo of a roll back",
        _then(_TWO, deeds.roll_back), deeds.undo,
        Expected(_slots(1), _slots(2), _12),
    ),
    Scenario(
        "an undo of a save",
        _TWO, deeds.undo,
        Expected(_slots(2), _slots(1), _12),
    ),
    Scenario(
        "an undo of a first save",
        _saved(("step_1", 1), ("step_2", 2)), deeds.undo,
        Expected(_slots(1, 2), _slots(1, None), _12),
    ),
    Scenario(
        "a redo of a roll back",
        _then(_TWO, deeds.roll_back, deeds.undo), deeds.redo,
        Expected(_slots(2), _slots(1), _12),
    ),
    Scenario(
        "a roll back of a file",
        _TWO_FILES, lambda run_dir: deeds.roll_back(run_dir, ADAPTER),
        Expected({ADAPTER: 2}, {ADAPTER: 1}, _12),
    ),
)  # fmt: skip
