"""What lies in tensors: statistics of one checkpoint, differences of two, streamed from the disk.

Needs numpy and no framework, and loads it only when numbers are read. Knows nothing of runs.
"""

from ckpt.checkpoint import TensorStats
from ckpt.tensors.differences import diff
from ckpt.tensors.statistics import stats
from ckpt.tensors.values import Difference, Form, Reshaped, Update, stats_findings

__all__ = [
    "Difference",
    "Form",
    "Reshaped",
    "TensorStats",
    "Update",
    "diff",
    "stats",
    "stats_findings",
]
