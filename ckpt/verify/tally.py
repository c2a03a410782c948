"""What a verification has found so far, the verdict that it allows, and how far it is."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ckpt.checkpoint import UNSUPPORTED_CODES, Damage, Finding, Severity, Verdict
from ckpt.operation import Progress

STRIDE_BYTES = 16 << 20
TELL_EVERY_S = 0.25


def verdict_of(findings: Iterable[Finding], *, is_all_compared: bool) -> Verdict:
    """Return the verdict that findings allow; warnings and notes never change it."""
    found = list(findings)
    codes = {finding.code for finding in found if finding.severity is Severity.ERROR}
    if codes - UNSUPPORTED_CODES:
        return Verdict.DAMAGED
    if any(finding.code in UNSUPPORTED_CODES for finding in found):
        return Verdict.UNSUPPORTED
    return Verdict.INTACT if is_all_compared else Verdict.UNVERIFIABLE


@dataclass(slots=True)
class Tally:
    """What one verification has found so far.

    `left` files with a hash are not yet compared, `uncovered` have none though others were sealed.
    """

    findings: list[Finding]
    uncovered: int = 0
    damage: list[Damage] = field(default_factory=list)
    compared: int = 0
    left: int = 0
    bytes_read: int = 0
    total_bytes: int = 0
    told_bytes: int = 0
    told_at: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """What can be said of the checkpoint by now."""
        is_all = self.compared > 0 and self.left == self.uncovered == 0
        return verdict_of(self.findings, is_all_compared=is_all)

    def step(self, name: str, count: int) -> Iterator[Progress]:
        """Count what was read, and say so now and then."""
        self.bytes_read += count
        is_far = self.bytes_read - self.told_bytes >= STRIDE_BYTES
        if is_far or time.monotonic() - self.told_at >= TELL_EVERY_S:
            yield self.progress(name)

    def progress(self, name: str) -> Progress:
        """Say how far the reading is."""
        self.told_bytes, self.told_at = self.bytes_read, time.monotonic()
        return Progress(self.bytes_read, max(self.total_bytes, self.bytes_read), name)
