"""The portable crash suite behind `ckpt selftest`."""
