"""Drafters: what a folder's drafter is, what it says, what is wrong with it, and its way into another dialect.

Policy: everything but :mod:`~trtforge.drafting.conversion` reads headers, small JSON and vocabulary maps only; no
torch, no weights. One EAGLE-3 description (:class:`~trtforge.drafting.description.Eagle3`) stands between all dialects,
so that a fact of a dialect is one row of :mod:`~trtforge.drafting.dialects`.
"""
