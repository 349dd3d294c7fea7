"""Names that the reference leaks by its imports: served, but imported only when asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def names(module: str, table: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's `__getattr__` for a table of name -> "package" or "package:attribute"."""

    def getter(name: str) -> Any:
        if name not in table:
            msg = f"module {module!r} has no attribute {name!r}"
            raise AttributeError(msg)
        package, _, attribute = table[name].partition(":")
        found = importlib.import_module(package)
        return getattr(found, attribute) if attribute else found

    return getter
