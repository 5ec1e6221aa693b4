"""What operators do to an instance: health, canary, unit text, environment file."""
