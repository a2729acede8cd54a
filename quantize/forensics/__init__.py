"""Forensics of a quantized checkpoint, whoever exported it: its records, headers and scales, without torch.

Policy: an export is wrong in silence far more often than loudly, so nothing is taken on trust: linears are held against
the ignore list in both directions, their tensors against the format's table, scales against what a scale can be, and
what travels beside the weights against the checkpoint that they were made of. All findings are collected, none stops
the others. Weights are never read. :mod:`quantize.audit` applies the rules.

``TF-AUD-001`` and ``-002`` are refusals, ``TF-AUD-1xx`` rules; the codes ``TF-K6-…``, ``TF-K7-…``, ``TF-K17-…`` from
101 on and ``TF-QNT-04x`` are rules too, from the time when ModelOpt's exports alone were known.
"""
