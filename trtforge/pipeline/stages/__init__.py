"""One module a stage: an adapter from the pipeline's contract to the package that does the work.

Policy: a stage module imports nothing heavy at the top, so that looking keys up stays cheap; everything
that decides a result is in its ``section``, its tools or its host facts; figures that vary from run to
run are ``measurements`` or measured files, never part of a content hash.
"""
