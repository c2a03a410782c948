"""What lies in tensors: statistics of one checkpoint, differences of two, streamed from the disk.

Needs numpy and no framework, and loads it only when numbers are read. Knows nothing of runs.
"""

from ckpt.tensors.statistics import stats
from ckpt.tensors.values import TensorStats, stats_findings

__all__ = ["TensorStats", "stats", "stats_findings"]
