"""Local PostgreSQL instances and routers, for `make up` and for the tests. Standard library only."""
