"""Classes that are nothing but their fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, eq_default=False)
def value_class(made: type[T]) -> type[T]:
    """A class of fields that are set once. The type checker refuses a second time; at run time refusing would make
    each new object three to four times as expensive, and every request makes a handful."""
    return dataclass(slots=True, eq=False, repr=False)(made)
