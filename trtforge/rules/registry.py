"""The rules of one folder: a module that lies in it is registered, and nothing else names it."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType, ModuleType
from typing import Any, Generic, TypeVar

from trtforge.rules.rule import Rule

RuleT = TypeVar("RuleT", bound=Rule[Any, Any])


class Registry(Generic[RuleT]):
    """The rules that the modules of a package declare.

    Args:
        package: dotted name of the folder; its modules are imported when the rules are first asked for.
        codes: what the codes look like, as a regular expression.
        order: sort key of a code.
    """

    def __init__(self, package: str, codes: str, order: Callable[[str], Any] = str) -> None:
        self._package, self._codes, self._order = package, re.compile(codes), order
        self._declared: dict[str, RuleT] = {}
        self._modules: dict[str, ModuleType] | None = None

    def declare(self, rule: RuleT) -> None:
        """Register a rule.

        Raises:
            ValueError: the code is taken, or is none of these rules'.
        """
        if self._codes.fullmatch(rule.code) is None:
            raise ValueError(f"{rule.code} is no code of {self._package}: {self._codes.pattern}")
        if rule.code in self._declared:
            raise ValueError(f"{rule.code} is taken by {self._declared[rule.code].title!r}")
        self._declared[rule.code] = rule

    def load(self) -> Mapping[str, ModuleType]:
        """Every module of the folder by its name, imported when this is first called."""
        if self._modules is None:
            folder = importlib.import_module(self._package).__path__
            names = sorted(found.name for found in pkgutil.iter_modules(folder))
            self._modules = {name: importlib.import_module(f"{self._package}.{name}") for name in names}
        return self._modules

    @cached_property
    def rules(self) -> Mapping[str, RuleT]:
        """Every rule by code, in order."""
        self.load()
        return MappingProxyType({code: self._declared[code] for code in sorted(self._declared, key=self._order)})
