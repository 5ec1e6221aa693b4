"""Recovering the account after an era ended: what the supplier accepted, and what is really there."""
