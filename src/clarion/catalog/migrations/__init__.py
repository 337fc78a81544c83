"""From the tables of one version of the catalog to those of the next, one file each, run by Alembic.

A new version is a file in `versions`, its number in `migrating.NEWEST`, and a copy of what the version before it wrote
in tests/catalog/older: the tests find it by themselves, and fail without it.
"""
