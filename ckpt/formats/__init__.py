"""All formats, in order of priority, and the question which of them claims a path."""
