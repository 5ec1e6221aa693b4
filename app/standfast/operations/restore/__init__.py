"""Restore: a verified backup becomes the state, under a new epoch and paused; the old state is kept.

`restoring.restore` is what the command calls. No option resumes: that takes the recovery of the account.
"""
