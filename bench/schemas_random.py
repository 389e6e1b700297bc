"""Random JSON schemas: pydantic's own, of models with random fields. What it writes is what most clients of structured output send."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union
from uuid import UUID

from pydantic import AnyUrl, BaseModel, Field, create_model

WORDS = """name age city street country price amount currency title author year month colour size weight height email phone status level
score rating count total unit tag note reason date owner team member item product order customer company address code language 颜色 城市
姓名"""
VALUES = "red green blue small medium large low normal high open closed pending north south east west cat dog bird 红色 绿色 蓝色 是 否"
PATTERNS = (r"^[A-Z]{2}\d{4}$", r"^\d{3}-\d{2}$", r"^[a-z]+(-[a-z]+)?$", r"^(ab|cd)*x$", r"^#[0-9a-f]{6}$")


class Models:
    """A source of models, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._count = 0

    def schema(self) -> dict[str, Any]:
        return self._model(depth=0).model_json_schema()

    def _model(self, depth: int) -> type[BaseModel]:
        pick, fields = self._random, {}
        for name in pick.sample(WORDS.split(), pick.randint(1, 6 if depth == 0 else 3)):
            kind = self._type(depth)
            default = ... if pick.random() < 0.7 else None
            fields[name] = (kind if default is ... else Optional[kind], default)  # noqa: UP045
        self._count += 1
        extra = pick.choice(("forbid", "forbid", "ignore"))
        return create_model(f"Model{self._count}", __config__={"extra": extra}, **fields)

    def _type(self, depth: int) -> Any:
        leaves = (self._string, self._integer, self._number, self._boolean, self._literal, self._enum, self._format)
        nested = (self._list, self._tuple, self._map, self._union, self._object, self._recursive)
        rare = (self._unenforceable,)
        kinds: tuple[Callable[[int], Any], ...] = self._random.choices((leaves, nested, rare), (60, 38 if depth < 3 else 0, 2))[0]
        return self._random.choice(kinds)(depth + 1)

    def _string(self, depth: int) -> Any:
        low = self._random.choice((None, 1, 3))
        high = self._random.choice((None, 10, 40))
        pattern = self._random.choice((None, None, None, *PATTERNS)) if low is high is None else None
        return Annotated[str, Field(min_length=low, max_length=high, pattern=pattern)]

    def _integer(self, depth: int) -> Any:
        low = self._random.choice((None, 0, -50, 1900))
        return Annotated[int, Field(ge=low, le=self._random.choice((None, 2100)), multiple_of=self._random.choice((None, None, 5)))]

    def _number(self, depth: int) -> Any:
        return Annotated[float, Field(ge=self._random.choice((None, 0)), lt=self._random.choice((None, 1, 1000)))]

    def _boolean(self, depth: int) -> Any:
        return bool

    def _literal(self, depth: int) -> Any:
        return Literal[tuple(self._random.sample([*VALUES.split(), 1, 2, 3, True, None], self._random.randint(1, 5)))]

    def _enum(self, depth: int) -> Any:
        self._count += 1
        return Enum(f"Enum{self._count}", {f"v{i}": value for i, value in enumerate(self._random.sample(VALUES.split(), 3))})

    def _format(self, depth: int) -> Any:
        return self._random.choice((date, datetime, time, timedelta, UUID, IPv4Address, AnyUrl))

    def _list(self, depth: int) -> Any:
        low, high = self._random.choice((None, 1, 2)), self._random.choice((None, 3, 5))
        return Annotated[list[self._type(depth)], Field(min_length=low, max_length=high)]

    def _tuple(self, depth: int) -> Any:
        return tuple[tuple(self._type(depth) for _ in range(self._random.randint(1, 3)))]

    def _map(self, depth: int) -> Any:
        return Annotated[dict[str, self._type(depth)], Field(min_length=self._random.choice((None, 1)))]

    def _union(self, depth: int) -> Any:
        return Union[self._type(depth), self._type(depth)]  # noqa: UP007

    def _object(self, depth: int) -> Any:
        return self._model(depth)

    def _recursive(self, depth: int) -> Any:
        self._count += 1
        name = f"Node{self._count}"
        node = create_model(name, value=(self._string(depth), ...), next=(Optional[name], None))  # noqa: UP045
        node.model_rebuild(_types_namespace={name: node})
        return node

    def _unenforceable(self, depth: int) -> Any:
        """What a grammar cannot hold: uniqueness, look-ahead, formats without a rule."""
        return self._random.choice((set[str], Decimal, Path, bytes))
