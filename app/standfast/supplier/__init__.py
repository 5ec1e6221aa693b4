"""The supplier stand-in: somebody else's account, a process of its own with a ledger of its own.

``wire`` is what both sides speak; everything else here runs only behind ``standfast supplier serve``.
"""
