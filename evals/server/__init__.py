"""A live server under evaluation, whoever runs it: asked over HTTP, held against what a bundle has on record."""
