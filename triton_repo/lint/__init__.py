"""Lint of Triton model repositories, whoever wrote them: findings with file and line.

Policy: an ``error`` is something that Triton or its backend refuses, or that gives wrong answers; a
``warning`` is a setting that is ignored or that costs speed or memory; a ``note`` is worth knowing and stops
nothing. What cannot be known here (an absolute path inside a container, a file behind a link that leaves the
repository) is never reported as wrong. Nothing is imported or executed from a repository, and links that
leave it are not followed.
"""
