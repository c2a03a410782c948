"""Append-only points of one value: array chunks and a length; decimation and EMA kept, not redone.

A point is (segment, step, time, value) at 20 bytes. Knows nothing of files or screens.
"""
