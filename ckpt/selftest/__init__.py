"""The portable crash suite behind `ckpt selftest`: the protocol, tried on one's own file system.

Every action is hit by errors and crashes at its disk calls, and by power cuts in a model.
"""

from ckpt.selftest.probes import Promise
from ckpt.selftest.running import SelfTest, run

__all__ = ["Promise", "SelfTest", "run"]
