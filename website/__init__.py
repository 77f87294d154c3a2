"""The site: pages of `docs`, pages generated from the code, and the order of both. `make docs` builds it."""
