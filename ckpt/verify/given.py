"""What a verification is given: how to compare, what the run knows, how files are reached."""

from collections.abc import Callable
from dataclasses import dataclass

from ckpt.checkpoint import Checkpoint, Finding
from ckpt.compared import Compared
from ckpt.seals import Seal


@dataclass(frozen=True, slots=True)
class Care:
    """How bytes are compared.

    `with_sha256`: the whole file's hash is computed also where chunk hashes are recorded.
    `is_polite`: what was read is dropped from the system's cache, which others may need more.
    """

    with_sha256: bool = False
    is_polite: bool = False


USUAL = Care()


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a run knows of a payload beyond what the payload says itself.

    `findings` say what of it cannot be used. `compared` has what was compared before, and takes
    down what is compared now.
    """

    seal: Seal | None = None
    findings: tuple[Finding, ...] = ()
    compared: Compared | None = None


NOTHING_RECORDED = Recorded()


@dataclass(frozen=True, slots=True)
class Read:
    """A checkpoint that was read down to its headers, and how its files are reached.

    `where` leads from a file's name to it; `is_there` says whether this very checkpoint still
    stands at its path. `is_whole` False: other files of its directory belong to other payloads.
    """

    seen: Checkpoint
    where: Callable[[str], str]
    is_there: Callable[[], bool]
    is_whole: bool = True
