"""Which JSON values the fields of transformers' TrainingArguments take, read from its source.

The check before anything starts and the worker share it: it imports neither torch nor transformers.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

JSON_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "dict": (dict,),
    "list": (list,),
    "None": (type(None),),
}
# Beside text, these leave no other reading of a number than as text.
READ_AS_TEXT = {"str", "None", "bool", "list", "Literal"}


def training_argument_types() -> dict[str, str]:
    """Field names of transformers' TrainingArguments to their annotations; empty where the
    source is not found.
    """
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return {}
    try:
        source = (Path(spec.origin).parent / "training_args.py").read_text(encoding="utf-8")
    except OSError:
        return {}
    return {
        item.target.id: ast.unparse(item.annotation)
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == "TrainingArguments"
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


def _names(annotation: str) -> list[str]:
    return [re.split(r"[\[.]", part.strip())[0] for part in annotation.split("|")]


def _is_natively(value: Any, names: list[str]) -> bool:
    allowed = tuple(kind for name in names for kind in JSON_TYPES.get(name, (str,)))
    if isinstance(value, bool):
        return bool in allowed or "Literal" in names
    return isinstance(value, allowed)


def as_text_where_text(value: Any, annotation: str) -> Any:
    """The value, but a number or truth value as JSON writes it where the field holds text: a run
    may be called 2024.
    """
    names = _names(annotation)
    scalar = isinstance(value, (bool, int, float))
    if scalar and "str" in names and READ_AS_TEXT.issuperset(names):
        return value if _is_natively(value, names) else json.dumps(value)
    return value


def fits(value: Any, annotation: str) -> bool:
    """Whether the field takes the JSON value; what cannot be judged here (an enumeration, say)
    fits as a string.
    """
    names = _names(annotation)
    if not {"Any", "Optional", "Union"}.isdisjoint(names):
        return True
    return _is_natively(as_text_where_text(value, annotation), names)
