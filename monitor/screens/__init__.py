"""One module a screen; each asks the app and paints what it is given."""
