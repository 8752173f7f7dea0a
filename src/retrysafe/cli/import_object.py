"""Import the user's object from `module:name`, for commands that need the application and not only its store."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrysafe.core.urls import safe_url
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import UsageError

MAX_SHOWN_NAMES = 20


def load_safe(text: str) -> RetrySafe:
    """Import the application's RetrySafe, with the operations and publishers that its modules declare. A function that
    returns it will do."""
    found = import_object(text)
    if isinstance(found, RetrySafe):
        return found
    if inspect.isfunction(found) and not _has_required_arguments(found):
        made = found()
        if isinstance(made, RetrySafe):
            return made
    others = [name for name, value in vars(_import_module(text)).items() if isinstance(value, RetrySafe)]
    hint = f"; did you mean {text.partition(':')[0]}:{others[0]}?" if others else ""
    raise UsageError(f"{text} is a {type(found).__name__}, not a RetrySafe{hint}")


def _has_required_arguments(function: Any) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    return False


def import_object(text: str) -> Any:
    """Import `package.module:name` (or `:name.attribute`). The current folder is searched too."""
    found: Any = _import_module(text)
    module, _, path = text.partition(":")
    for name in path.split("."):
        if not hasattr(found, name):
            raise UsageError(f"{text}: {module} has no {name!r}; {describe_names(module, name, vars(found))}")
        found = getattr(found, name)
    return found


def describe_names(module: str, name: str, names: Mapping[str, Any]) -> str:
    """What to write instead: a name like this one, or what is there; the RetrySafe objects first."""
    known = sorted(each for each in names if not each.startswith("_"))
    safes = [each for each in known if isinstance(names[each], RetrySafe)]
    near = difflib.get_close_matches(name, safes, 1) or difflib.get_close_matches(name, known, 1)
    if near:
        return f"did you mean {module}:{near[0]}?"
    return f"it has {', '.join(list(dict.fromkeys([*safes, *known]))[:MAX_SHOWN_NAMES]) or 'nothing'}"


def _import_module(text: str) -> Any:
    module, colon, path = text.partition(":")
    if path.startswith("//"):
        raise UsageError(
            f"{safe_url(text)}: this command needs the application's code, not the URL of its store: write "
            "MODULE:NAME, for example myapp.payments:safe"
        )
    if not module or not colon or not path:
        raise UsageError(f"{text!r}: write MODULE:NAME, for example myapp.payments:safe")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(error.name + ".")):
            raise UsageError(
                f"{text}: no module named {error.name!r}; run this where `python -c 'import {module}'` works"
            ) from error
        raise UsageError(f"{text}: importing {module} failed: {error}") from error
    except Exception as error:
        raise UsageError(f"{text}: importing {module} failed with {type(error).__name__}: {error}") from error
