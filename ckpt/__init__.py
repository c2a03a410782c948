"""Checkpoints that cannot be lost: read, verify, watch. Public names are resolved when used."""
