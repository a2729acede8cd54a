"""One engine for everything that is judged by rules: recipes (preflight) and model repositories (lint).

A rule is a function over one subject that yields a :class:`~trtforge.rules.rule.Breach` for each place where it does
not hold; its code, severity and source are declared beside it, and its docstring is the reason. What a rule found is a
:class:`~trtforge.rules.rule.Finding`: the rule and the breach together, never a copy of either. Each engine adds what
is its own: the subject, and the fields of its breaches.
"""
