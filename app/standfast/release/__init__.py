"""The release bundle: what is built, how it is verified, and when it counts as installed.

A release is one uncompressed archive, `standfast-<release-id>.tar`, the same bytes for the same commit:

    manifest.json       what the release is, and the sha256 of every other file (`manifest.Manifest`)
    requirements.lock   the hash-pinned lock of its dependencies, as reviewed
    app.lock            the same for the package itself
    wheels/*.whl        all of them, for every declared Python and platform, with the pip that installs them

`build` makes it (from a clone, calling git, pip and hatchling as commands), `verify` checks it in any of its
forms, `signature` signs it, `seal` ends its installation, and `installed` knows the releases of a host.
Nothing here imports more than the run-time dependencies: each release can verify, seal and list by itself.

The eight hex digits at the end of a release id are the digest of its manifest: they tell releases apart. What
vouches for a release is its signature, or the sha256 of its archive, handed over by another way.

How a release becomes an installed one. R is its final folder, `<root>/releases/<release-id>` (a venv cannot
be moved); every step is root's, and a run killed before the last one leaves no `installed.json`, so that the
next run removes R and starts over:

1.  `standfast --json release verify ARCHIVE` on the controller; copy; compare with its `archive_sha256`.
2.  make R (root, 0755), then
    `tar --extract --file ARCHIVE --directory R --no-same-owner --same-permissions`
3.  `pythonX.Y -I -m venv --without-pip R/venv`, X.Y being one of `manifest.pythons`
4.  with `PIP_CONFIG_FILE=/dev/null`, and `manifest.installer` being the pip wheel, which runs out of its zip:
    `R/venv/bin/python -I -B R/<installer>/pip --isolated --disable-pip-version-check install --no-input
    --no-index --find-links R/wheels --require-hashes --no-deps --only-binary=:all: --no-compile
    --no-cache-dir --root-user-action ignore -r R/requirements.lock -r R/app.lock`
5.  `R/venv/bin/python -I -B -m compileall -q --invalidation-mode unchecked-hash R/venv/lib`
6.  `chmod -R u=rwX,go=rX R`: whatever the host's umask was, the service can read it and not write it
7.  `R/venv/bin/python -I -B -m standfast --json release seal R`: proves that every module imports and that
    exactly the locked packages are installed, syncs, and writes `installed.json` last
8.  ever after: `R/venv/bin/python -I -B -m standfast --json release verify --installed R`

Nothing else is ever put into R: a file that neither the manifest nor the seal knows is a difference.
"""
