"""The Textual app behind `ckpt-monitor`; asks `ckpt` for everything and paints it."""
