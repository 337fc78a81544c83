"""The composition root: settings, `serve`, and the commands people type."""
