"""Publishing what a training script saves, and letting go what its policy does not keep."""

from pathlib import Path

from ckpt.generations.find import home_of
from ckpt.generations.publishing import Write, publish
from ckpt.operation import drive
from ckpt.retention import Policy, retain

KEEP_LAST = Policy(keep_last=1)
"""What a save keeps when it is told nothing: the generation before it, of its own slot."""


def publish_and_retain(
    target: Path,
    write: Write,
    *,
    run_dir: str | Path | None,
    keep: Policy | None,
    is_file: bool = False,
) -> Path:
    """Publish, durable when this returns; only then what the policy lets go goes.

    A failure of that is a warning: the save is done. `keep` None: everything stays.

    Raises:
        PublishError, Busy: as `publish`.
    """
    run = Path(run_dir) if run_dir is not None else home_of(target)
    swapped = drive(publish(target, write, run_dir=run, is_file=is_file))
    if keep is not None:
        retain(run, keep, slot=swapped.changes[0].slot)
    return swapped.path
