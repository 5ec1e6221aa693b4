"""Backups: consistent, private, exclusive, checked, synced and described; a rehearsal shows that one counts.

`creating.create`, `listing.listing`, `verifying.verify`, `retention.prune`, `rehearsing.rehearse` and
`migrating.migrate` are what the commands call. Nothing is imported here: health needs the listing alone.
"""
