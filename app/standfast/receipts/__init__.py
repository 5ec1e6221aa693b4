"""Operation receipts: what each operation did, chained by digest, for machines and people."""
