"""The engine that steps images, whatever the objective."""
