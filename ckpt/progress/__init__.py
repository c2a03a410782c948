"""Progress files of trainers: one module a file, each turning what changed into run events.

They know nothing of each other, of checkpoints or of which files a run has: `sources.py` does.
"""
