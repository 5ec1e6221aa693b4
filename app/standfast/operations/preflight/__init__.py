"""What an upgrade to this release would meet, told before anything is stopped.

The target's own code looks at the live state while the service of the old release works. It reads the store
through `store.look_at`, which changes no byte of the state directory, and tries its migrations on a copy
below `backups/`. What only root can see is hostcheck's to tell.
"""
