"""Widgets: they receive a view, never read a file and never run an operation."""
