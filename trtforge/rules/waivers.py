"""Rules that a user has set aside, by code and with a justification."""

from __future__ import annotations

from collections.abc import Mapping

from trtforge.ground.errors import ForgeError
from trtforge.ground.names import nearest
from trtforge.rules.rule import Identity


def require_known(waivers: Mapping[str, str], rules: Mapping[str, Identity], *, kind: str = "preflight") -> None:
    """Hold waivers against the rules that there are; ``kind``: what the rules are called.

    Raises:
        ForgeError: TF-RCP-014 for a code that does not exist, or without a justification.
    """
    for code, reason in waivers.items():
        if code not in rules:
            near = nearest(code, rules)
            raise ForgeError(
                "TF-RCP-014",
                f"waive: {code} is no {kind} code",
                asked=f"waive: {{{code}: {reason}}}",
                why="A waiver of a rule that does not exist would only look like one.",
                remedies=[f"waive {near}"] if near else ["trtforge check RECIPE prints the codes of its findings"],
            )
        if not reason.strip():
            raise ForgeError(
                "TF-RCP-014",
                f"waive: {code} has no justification",
                asked=f"waive: {{{code}: ''}}",
                why="Whoever reads the bundle's report must see why the rule was set aside.",
                remedies=[f"waive: {{{code}: why this is fine here}}"],
            )


def justification(waivers: Mapping[str, str], rule: Identity) -> str | None:
    """Why the rule is set aside; None where it is not, or must not be."""
    return waivers.get(rule.code) if rule.waivable else None
