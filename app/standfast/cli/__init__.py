"""What operators, runbooks and roles call: one module per noun, no logic."""
