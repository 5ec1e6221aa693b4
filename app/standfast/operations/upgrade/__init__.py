"""Changing the code of an instance: facts, the journal of the steps, the switch, and the way back."""
